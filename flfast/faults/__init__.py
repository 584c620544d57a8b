"""Faults: what happens to clients and uploads that mean well."""
