"""More robust rules."""
