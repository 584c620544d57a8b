"""More selections."""
