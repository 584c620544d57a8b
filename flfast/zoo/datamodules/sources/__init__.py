"""More datasets."""
