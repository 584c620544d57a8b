"""Federated learning at the speed of the hardware."""

from importlib.metadata import version

__version__ = version("flfast")
