"""Audits of a finished run: what its server could learn about the training data."""
