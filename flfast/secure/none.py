"""No secure aggregation."""

from flfast.secure.secure import NO_SECURE, Secure


def none() -> Secure:
    """Uploads are sent in the clear."""
    return NO_SECURE
