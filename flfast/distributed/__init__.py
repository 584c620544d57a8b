"""Ranks: how they start, what they exchange, and where client states and shards live."""
