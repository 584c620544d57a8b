"""Callbacks: what a run shows and leaves."""
