"""Ranks: how they start, what they exchange, and what lives where."""
