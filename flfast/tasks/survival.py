"""Survival: the time to an event, perhaps censored; Cox partial likelihood and concordance.

The model gives a log hazard, up to a constant that nothing depends on. Cox: Regression Models and
Life-Tables. Journal of the Royal Statistical Society B 34, 1972, with Breslow's
denominator for tied events.
"""

import torch
from torch import Tensor

from flfast.tasks.task_type import Statistics, TaskType


def _check(targets: Tensor, num_outputs: int) -> None:
    if num_outputs != 1:
        raise ValueError(f"a model of a survival task gives one number, got {num_outputs}")
    if targets.ndim != 2 or targets.shape[1] != 2 or not targets.is_floating_point():
        kind = str(targets.dtype).removeprefix("torch.")
        raise ValueError(
            "targets of a survival task must be floats [N, 2], time and event, "
            f"got {kind} {list(targets.shape)}"
        )
    time, event = targets.unbind(dim=1)
    for name, wrong, allowed in (
        ("time", ~(time.isfinite() & (time >= 0)), "0 or more"),
        ("event", (event != 0) & (event != 1), "0 (censored) or 1"),
    ):
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            found = float(targets[first, int(name == "event")])
            raise ValueError(f"the {name} of example {first} is {found:g}; allowed: {allowed}")


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Each example's term of the negative log partial likelihood of these examples, [B].

    That of an event is log(sum over examples at risk of exp(log hazard)) - its own log hazard. A
    censored example has zero.
    """
    # A sum of exponentials of 16-bit numbers would be too inexact.
    risk = outputs[:, 0].to(torch.promote_types(outputs.dtype, torch.float32))
    time, event = targets.to(risk.dtype).unbind(dim=1)
    descending, order = (-time).sort()
    # The last example with an equal time: ties are at risk for each other.
    last = torch.searchsorted(descending, -time, right=True) - 1
    return event * (risk[order].logcumsumexp(dim=0)[last] - risk)


def _statistics(outputs: Tensor, targets: Tensor) -> Statistics:
    time, event = targets.float().unbind(dim=1)
    return {"outputs": outputs[:, 0].float(), "time": time, "event": event}


def _by_group(statistics: Statistics, group: Tensor, num_groups: int) -> dict[str, Tensor]:
    """The loss of a group is the mean of its examples' terms, with risk sets within the group."""
    loss = torch.full((num_groups,), float("nan"), dtype=torch.float64, device=group.device)
    targets = torch.stack([statistics["time"], statistics["event"]], dim=1)
    places = group.argsort(stable=True).split(torch.bincount(group, minlength=num_groups).tolist())
    for number, members in enumerate(places):
        outputs = statistics["outputs"][members].double().unsqueeze(1)
        loss[number] = _losses(outputs, targets[members]).mean()
    ordered = concordance(**statistics, group=group, num_groups=num_groups)
    return {"loss": loss, "concordance": ordered}


def concordance(
    outputs: Tensor, time: Tensor, event: Tensor, group: Tensor, num_groups: int
) -> Tensor:
    """Harrell's C of each group [G]; NaN where no pair is comparable.

    It is the share of comparable pairs in which the one with the earlier event has the higher
    predicted risk; equal risks count one half. A pair is comparable if the earlier time is that
    of an event; of equal times, if one is an event and the other is censored. All inputs are [M].
    Harrell, Lee, Mark: Multivariable prognostic models. Statistics in Medicine 15, 1996.

    Pairs of an earlier and a later example are counted by the highest bit in which the ranks of
    their times differ, so that time is O(M log² M) and memory O(M).
    """
    num, has_event = len(time), event > 0
    times = torch.unique(time, return_inverse=True)[1]
    # An event comes before what is censored at the same time, and ties with other events.
    rank = 2 * times + ~has_event
    # NaN, as diverged models predict, counts as 0.
    risk = torch.unique(outputs.nan_to_num(0.0), return_inverse=True)[1]
    pairs, higher = torch.zeros(2, num_groups, dtype=torch.float64, device=time.device)
    for bit in range((2 * num).bit_length()):
        block = group * (2 * num + 2) + (rank >> (bit + 1))
        is_later = (rank >> bit) % 2 == 1
        later = (block * num + risk)[is_later].sort().values
        earlier = has_event & ~is_later
        first = block[earlier] * num
        start, below, upto, stop = (
            torch.searchsorted(later, keys, right=right)
            for keys, right in (
                (first, False),
                (first + risk[earlier], False),
                (first + risk[earlier], True),
                (first + num, False),
            )
        )
        pairs.index_add_(0, group[earlier], (stop - start).double())
        higher.index_add_(0, group[earlier], (below + upto).double() / 2 - start)
    return higher / pairs


SURVIVAL = TaskType(
    name="survival",
    check_targets=_check,
    losses=_losses,
    loss=lambda outputs, targets: _losses(outputs, targets).mean(),
    no_predictions=lambda num_outputs: (torch.zeros(0, num_outputs), torch.zeros(0, 2)),
    statistics=_statistics,
    by_group=_by_group,
    separable=False,
)
"""Targets are floats [N, 2]: time >= 0, and 1 if the event happened then, 0 if it was not seen
until then. Outputs are log hazards [B, 1]. The loss is a mean over all examples, censored ones,
too."""
