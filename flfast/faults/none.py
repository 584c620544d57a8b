"""No faults."""

from flfast.faults.fault import NO_FAULTS, Faults


def none() -> Faults:
    """Nothing goes wrong."""
    return NO_FAULTS
