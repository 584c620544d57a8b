"""Helpers that several algorithms use."""
