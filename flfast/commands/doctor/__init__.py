"""The self-check: `python -m flfast.doctor`."""
