"""Callbacks: what a run displays, and the files that it writes."""
