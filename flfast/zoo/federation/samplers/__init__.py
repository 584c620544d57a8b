"""More samplers."""
