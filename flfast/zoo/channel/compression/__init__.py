"""More compressions."""
