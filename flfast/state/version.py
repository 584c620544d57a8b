"""The version of flfast. It stands here alone, so that a checkout needs no installation."""

__version__ = "0.1.0"
