"""Attacks: what clients that mean harm upload, or learn from."""
