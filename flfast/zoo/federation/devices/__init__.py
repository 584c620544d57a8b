"""More models of devices."""
