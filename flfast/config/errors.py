"""The one error a user sees for a wrong setting."""


class ConfigError(ValueError):
    """A setting that cannot be run; the message names key, value and what is allowed."""


class OneRankError(ConfigError):
    """The same on one rank only, for which the others wait in vain."""
