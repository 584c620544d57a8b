"""More attacks."""
