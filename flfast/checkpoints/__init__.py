"""Checkpoints: what outlives a run that ends, and how another one goes on with it."""
