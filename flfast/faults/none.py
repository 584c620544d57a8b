"""No faults."""

from flfast.faults.fault import NO_FAULTS, Faults


def none() -> Faults:
    """No faults: every upload arrives as it was sent."""
    return NO_FAULTS
