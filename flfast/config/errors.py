"""The one error a user sees for a wrong setting."""


class ConfigError(ValueError):
    """A setting that cannot be run; the message names key, value and what is allowed."""
