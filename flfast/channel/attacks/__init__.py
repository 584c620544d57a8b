"""Attacks: what malicious clients upload, or train on; `conf/attack` explains their settings."""
