"""More adapters."""
