"""Federated algorithms, one per file, and what they share."""
