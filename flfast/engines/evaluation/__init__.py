"""Evaluation passes and their metrics."""
