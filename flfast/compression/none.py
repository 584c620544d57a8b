"""No compression."""

from flfast.compression.compression import NO_COMPRESSION, Compression


def none() -> Compression:
    """Changes are sent as they are."""
    return NO_COMPRESSION
