"""No privacy."""

from flfast.privacy.privacy import NO_PRIVACY, Privacy


def none() -> Privacy:
    """Changes are neither clipped nor noised."""
    return NO_PRIVACY
