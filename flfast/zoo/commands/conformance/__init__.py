"""The conformance program: `python -m flfast.conformance`."""
