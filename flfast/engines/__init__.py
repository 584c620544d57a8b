"""Engines: they train the clients of a cohort and combine their uploads."""
