"""No attack."""

from flfast.attacks.attack import NO_ATTACK, Attack


def none() -> Attack:
    """No client attacks."""
    return NO_ATTACK
