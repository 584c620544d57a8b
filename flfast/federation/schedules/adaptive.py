"""Plans with a larger batch or a lower learning rate each time a metric stalls.

Smith, Kindermans, Ying, Le: Don't Decay the Learning Rate, Increase the Batch Size. ICLR 2018.
Doubling the batch has the effect of halving the learning rate, with fewer local steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from flfast.state.plan import RoundPlan
from flfast.tasks.names import falls

Action = Literal["double_batch", "halve_lr"]
Plans = Callable[[int, Sequence[Mapping[str, Any]]], RoundPlan]


def adaptive(
    plans: Plans, *, metric: str, patience: int, action: Action, max_batch_size: int, min_lr: float
) -> Plans:
    """Plans that change once for every stall of the metric so far.

    They depend on the rows so far alone, so that a resumed run continues with the same plans.

    Args:
        plans: the plans to change, (round, rows so far) -> plan.
        metric: a validation metric or the training loss; `falls` says which way it improves.
        patience: measurements without a new best that make a stall, >= 1.
        action: setting that changes at a stall.
        max_batch_size: upper bound of the batch size, >= 1.
        min_lr: lower bound of the learning rate, >= 0.
    """

    def plan_of(round_idx: int, history: Sequence[Mapping[str, Any]]) -> RoundPlan:
        plan = plans(round_idx, history)
        values = [float(row[metric]) for row in history[:round_idx] if metric in row]
        factor = 2 ** num_stalls(values, patience=patience, lower=falls(metric))
        if action == "halve_lr":
            return plan._replace(lr=max(plan.lr / factor, min(min_lr, plan.lr)))
        size = plan.batching.batch_size
        if size == -1:  # B = infinity cannot grow
            return plan
        grown = min(size * factor, max(max_batch_size, size))
        return plan._replace(batching=plan.batching._replace(batch_size=grown))

    return plan_of


def num_stalls(values: Sequence[float], *, patience: int, lower: bool) -> int:
    """How often `patience` values in a row were no new best.

    >>> num_stalls([3.0, 2.0, 2.5, 2.5, 2.0, 2.1], patience=2, lower=True)
    2
    """
    best, waited, stalls = math.inf, 0, 0
    for value in values:
        signed = value if lower else -value
        if signed < best:
            best, waited = signed, 0
            continue
        waited += 1
        if waited == patience:
            stalls, waited = stalls + 1, 0
    return stalls
