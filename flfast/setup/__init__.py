"""Builds and starts a run from a checked config."""
