"""Benchmarks of flfast: `python -m benchmarks.speed`, from the root of a checkout."""
