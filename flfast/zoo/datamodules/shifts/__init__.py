"""More shifts."""
