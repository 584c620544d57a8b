"""No attack."""

from flfast.attacks.attack import NO_ATTACK, Attack


def none() -> Attack:
    """Nobody attacks."""
    return NO_ATTACK
