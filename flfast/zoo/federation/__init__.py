"""More of who takes part, and on which devices."""
