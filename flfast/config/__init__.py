"""Checks every option before torch is imported."""
