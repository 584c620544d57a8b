"""Every round as configured; only the learning rate follows its own schedule."""

from collections.abc import Callable, Sequence

from flfast.plan import RoundPlan


def constant(*, base: RoundPlan, learning_rates: Sequence[float]) -> Callable[[int], RoundPlan]:
    """Plan of every round.

    Args:
        base: what the command line chose.
        learning_rates: of rounds 1, 2, ..., one per round.
    """
    return lambda round_idx: base._replace(round_idx=round_idx, lr=learning_rates[round_idx - 1])
