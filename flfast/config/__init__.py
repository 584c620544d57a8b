"""The door: every option is checked here, before torch is imported."""
