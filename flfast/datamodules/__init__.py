"""Federated data: examples loaded once, clients as index arrays."""
