"""Plans that are constant within each phase of the schedule, up to the learning rate."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from flfast.state.plan import RoundPlan

LrScaling = Literal["none", "linear", "sqrt"]


def piecewise(
    plans: Sequence[tuple[int, RoundPlan]], learning_rates: Sequence[Sequence[float]]
) -> Callable[[int, Sequence[Mapping[str, Any]]], RoundPlan]:
    """(round, rows so far) -> plan of the phase that the round belongs to.

    Args:
        plans: (first round, plan) of each phase, ascending; the first one starts at round 1.
        learning_rates: local learning rates of each phase, for rounds 1, 2, ...
    """

    def plan_of(round_idx: int, _history: Sequence[Mapping[str, Any]]) -> RoundPlan:
        phase = max(i for i, (start, _) in enumerate(plans) if start <= round_idx)
        rate = learning_rates[phase][round_idx - 1]
        return plans[phase][1]._replace(round_idx=round_idx, lr=rate)

    return plan_of


def scale_lr(lr: float, *, rule: LrScaling, batch_size: int, base_batch_size: int) -> float:
    """Learning rate for another batch size.

    Goyal et al. 2017 (linear: k times the batch, k times the rate); Krizhevsky 2014 (sqrt).
    With B = infinity there is no ratio, and the rate stays.

    >>> scale_lr(0.1, rule="linear", batch_size=40, base_batch_size=10)
    0.4
    """
    if rule == "none" or -1 in (batch_size, base_batch_size):
        return lr
    ratio = batch_size / base_batch_size
    return lr * (ratio if rule == "linear" else ratio**0.5)
