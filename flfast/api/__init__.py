"""Runs from Python: `flfast.run` and what it returns."""
