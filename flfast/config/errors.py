"""Errors for wrong settings, shown to the user without a traceback."""


class ConfigError(ValueError):
    """A setting that cannot be run. The message names the key, its value and what is allowed."""


class OneRankError(ConfigError):
    """A `ConfigError` on one rank only: the other ranks do not know of it and must be stopped."""
