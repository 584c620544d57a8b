"""More privacy."""
