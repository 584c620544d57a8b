"""Checkpoints: what a run writes to be resumed, and how it is restored."""
