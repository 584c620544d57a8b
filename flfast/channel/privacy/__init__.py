"""Differential privacy: bounds on what clients send, noise, and how much privacy is left."""
