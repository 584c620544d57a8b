"""Engines: how a cohort is run."""
