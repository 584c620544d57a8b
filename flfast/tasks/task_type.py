"""The contract of a learning task. N examples, B of a batch, C outputs, G groups, M predicted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flfast.tasks.names import METRICS, TaskName, headline

IGNORED = -100
"""The target of a position where nothing is to predict; torch's `ignore_index`."""

Statistics = dict[str, Tensor]
"""Values that the metrics need of each of M examples, by name, each [M, ...]."""


@dataclass(frozen=True)
class TaskType:
    """How a task reads targets and model outputs, and its loss and metrics.

    Attributes:
        name: value of the option `task`.
        check_targets: (all targets [N, ...], C) -> None; raises a ValueError that says what
            targets must be.
        output_shape: (targets [B, ...], C) -> the shape that the model's outputs must have.
        losses: (outputs [B, ...], targets [B, ...]) -> mean loss of each example [B]. The outputs
            of a language model may be `FactoredLogits`, here and below.
        loss: (outputs, targets) -> mean loss of the batch []; where every example counts equally.
        counts: targets [B, ...] -> number of targets of each example that count, [B]. None where
            all examples count equally.
        no_predictions: C -> outputs and targets of no example.
        statistics: (outputs, targets) -> `Statistics`. The data types depend on nothing, since
            ranks exchange them.
        by_group: (statistics, group int64 [M], G) -> every metric of each group [G]. NaN where it
            is not defined.
        pooled: metrics that are no mean over examples weighted by `counts`. Their summary is
            computed from all examples at once, not from groups.
        reads_factors: whether outputs may also be `FactoredLogits`.
        separable: whether the loss of an example depends on this example alone. If not, it
            depends on the batch, which may then not be split; see `Algorithm.separable`.
        padded: whether examples may get weights, so that batches can be padded.
        logged: names of what a user's module logs in local training, on validation and on test
            examples; empty of other tasks.
        monitored: names that local training logs on a client's validation examples, for callbacks.
    """

    name: TaskName
    check_targets: Callable[[Tensor, int], None]
    losses: Callable[[Any, Tensor], Tensor]
    loss: Callable[[Any, Tensor], Tensor]
    statistics: Callable[[Any, Tensor], Statistics]
    by_group: Callable[[Statistics, Tensor, int], dict[str, Tensor]]
    output_shape: Callable[[Tensor, int], tuple[int, ...]] = lambda t, num: (len(t), num)
    counts: Callable[[Tensor], Tensor] | None = None
    no_predictions: Callable[[int], tuple[Tensor, Tensor]] = lambda num: (
        torch.zeros(0, num),
        torch.zeros(0, num),
    )
    pooled: tuple[str, ...] = ()
    reads_factors: bool = False
    separable: bool = True
    padded: bool = True
    logged: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] = ((), (), ())
    monitored: tuple[str, ...] = ("val/loss",)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, in the order of their columns."""
        return METRICS[self.name] or tuple(dict.fromkeys(self.logged[1] + self.logged[2]))

    @property
    def headline(self) -> str:
        """The metric that models are compared by."""
        return headline(METRICS[self.name] or self.logged[1] or self.logged[2]) or "loss"

    def num_counted(self, targets: Tensor, given: Tensor | None = None) -> Tensor | int:
        """Targets of a batch that count: all examples, or the tokens that are not ignored.

        Given weights are zero for padding; None if there is none.
        """
        if self.counts is None:
            return len(targets)
        counts = self.counts(targets)
        return (counts if given is None else counts * (given > 0)).sum()

    def weights(self, targets: Tensor, given: Tensor | None = None) -> Tensor | None:
        """Weights of a batch's examples in the batch's mean, [B] with sum one; None if equal.

        Given weights are zero for padding; None if there is none.
        """
        if self.counts is None:
            return given
        counts = self.counts(targets)
        counts = counts.to(torch.get_default_dtype() if given is None else given.dtype)
        if given is not None:
            counts = counts * (given > 0)
        return counts / counts.sum()


def group_sums(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Sums of values [M, ...] by group, float64 [G, ...]."""
    total = torch.zeros(num_groups, *values.shape[1:], dtype=torch.float64, device=group.device)
    return total.index_add_(0, group, values.double())


def group_means(
    values: Tensor, group: Tensor, num_groups: int, *, weights: Tensor | None = None
) -> Tensor:
    """Means of values [M, ...] by group, float64 [G, ...]; NaN for empty groups.

    Weights [M] weigh examples; None weighs them equally.
    """
    weights = torch.ones_like(group) if weights is None else weights
    shape = (-1, *[1] * (values.ndim - 1))
    sums = group_sums(values.double() * weights.view(shape), group, num_groups)
    return sums / group_sums(weights, group, num_groups).view(shape)


def _sorted(values: Tensor) -> Tensor:
    # NumPy sorts integers several times as fast as torch, which also sorts their places.
    return torch.from_numpy(np.sort(values.numpy())) if values.is_cpu else values.sort().values


def micro_auc(scores: Tensor, positive: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """AUC over all (example, column) pairs: the Mann-Whitney statistic of mid-ranks, [G].

    Scores are >= 0, float32 [M, C]; `positive` are numbers, int64, of their flat entries.
    torchmetrics has it neither for several classes nor by group.
    """
    num_columns = scores.shape[1]
    # (group, score) in one integer: the bits of non-negative floats sort like the floats. NaN, as
    # diverged models predict, counts as 0.
    scores = scores.nan_to_num(0.0)
    keys = ((group[:, None] << 32) + scores.contiguous().view(torch.int32)).flatten()
    chosen, keys = _sorted(keys[positive]), _sorted(keys)  # sorted queries hit the cache
    group_of = chosen >> 32
    below = torch.searchsorted(keys, chosen)
    upto = torch.searchsorted(keys, chosen, right=True)
    num_positive = torch.bincount(group_of, minlength=num_groups).double()
    pairs = torch.bincount(group, minlength=num_groups).double() * num_columns
    before = pairs.cumsum(0) - pairs
    rank_sum = torch.zeros(num_groups, dtype=torch.float64, device=group.device)
    rank_sum.index_add_(0, group_of, (below + upto + 1) / 2 - before[group_of])
    statistic = rank_sum - num_positive * (num_positive + 1) / 2
    return statistic / (num_positive * (pairs - num_positive))
