"""Attacks on trained models and on uploads."""
