"""Faults: what happens to honest clients and their uploads."""
