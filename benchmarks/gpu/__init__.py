"""What a first GPU has to show, in minutes: `python -m benchmarks.gpu`."""
