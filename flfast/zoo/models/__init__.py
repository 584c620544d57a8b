"""More models and adapters."""
