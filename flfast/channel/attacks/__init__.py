"""Attacks: what malicious clients upload, or train on."""
