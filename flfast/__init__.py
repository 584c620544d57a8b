"""Federated learning at the speed of the hardware."""
