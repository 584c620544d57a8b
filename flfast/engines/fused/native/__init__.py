"""Kernels of our own where torch's library has none for the shape: few rows, one core."""
