"""Strategies that Lightning does not have."""
