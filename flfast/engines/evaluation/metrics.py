"""Metrics of an evaluation set by group, usually by client, and their summary.

What is measured is the task's. torchmetrics has no metrics by group; tests compare ours with its.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from flfast.datamodules.evaluation_sets import EvaluationSet
from flfast.tasks.names import falls
from flfast.tasks.task_type import Statistics, TaskType, group_sums

_SAMPLE = 100


class GroupMetrics(NamedTuple):
    """Metrics of G groups.

    Attributes:
        groups: ids of the groups, such as clients, int64 [G]; -1 for a central set.
        num_examples: int64 [G].
        weight: weight of each group in a mean over groups, float64 [G]: the targets that count.
        values: every metric of each group [G], by name; NaN where it is not defined.
        pooled: metrics that are not a mean over examples, of all groups together.
        headline: the metric that models are compared by.
        spread: metrics whose spread over groups the summary has.
        single_class: whether one class is predicted for all examples, which are of several.
    """

    groups: Tensor
    num_examples: Tensor
    weight: Tensor
    values: dict[str, Tensor]
    pooled: dict[str, float]
    headline: str
    spread: tuple[str, ...]
    single_class: bool = False

    @property
    def of_clients(self) -> bool:
        """Whether each group is a client."""
        return bool((self.groups >= 0).all())


def set_metrics(
    task_type: TaskType, predictions: Statistics, part: EvaluationSet
) -> GroupMetrics | None:
    """Metrics of an evaluation set by group, on the CPU; None if it has no examples.

    `predictions` are those of the whole pass.
    """
    if not len(part.positions):
        return None
    device = next(iter(predictions.values())).device
    positions = torch.from_numpy(part.positions).to(device)
    chosen = {name: tensor[positions] for name, tensor in predictions.items()}
    place = torch.from_numpy(part.place).to(device)
    metrics = group_metrics(task_type, chosen, place, len(part.groups))
    return metrics._replace(
        groups=torch.from_numpy(part.groups),
        num_examples=metrics.num_examples.cpu(),
        weight=metrics.weight.cpu(),
        values={name: value.cpu() for name, value in metrics.values.items()},
        single_class=task_type.name == "classification" and _single_class(chosen),
    )


def _single_class(statistics: Statistics) -> bool:
    for part in (slice(_SAMPLE), slice(None)):  # of most models, few examples tell
        predicted = statistics["scores"][part].argmax(dim=1)
        if bool((predicted != predicted[0]).any()):
            return False
    return bool((statistics["targets"] != statistics["targets"][0]).any())


def group_metrics(
    task_type: TaskType, predictions: Statistics, group: Tensor, num_groups: int
) -> GroupMetrics:
    """Metrics of M predictions by group, int64 [M], in [0, num_groups)."""
    count = torch.bincount(group, minlength=num_groups)
    targets = predictions.get("counts")
    weight = count.double() if targets is None else group_sums(targets, group, num_groups)
    pooled = {}
    if task_type.pooled:
        found = task_type.by_group(predictions, torch.zeros_like(group), 1)
        pooled = {name: float(found[name]) for name in task_type.pooled}
    values = task_type.by_group(predictions, group, num_groups)
    groups = torch.arange(num_groups)
    name = task_type.headline
    return GroupMetrics(groups, count, weight, values, pooled, name, (name,))


def part_of_groups(metrics: GroupMetrics, places: Tensor) -> GroupMetrics:
    """Metrics of some groups, by their places; what is no mean over examples is left out."""
    return metrics._replace(
        groups=metrics.groups[places],
        num_examples=metrics.num_examples[places],
        weight=metrics.weight[places],
        values={name: value[places] for name, value in metrics.values.items()},
        pooled={},
    )


def summary(metrics: GroupMetrics) -> dict[str, float]:
    """Metrics of all groups together, and the spread of some over non-empty groups.

    Returns:
        Every metric: pooled, or the mean over groups, weighted by targets that count. A group for
        which it is not defined, such as an AUC without positive labels, is left out. A group with
        a loss of NaN stays: its model diverged. Unweighted: `{name}_std`, and `{name}_worst10`,
        the mean of the worst tenth of the groups (at least one). A metric of such a name comes
        before the spread of another. A central set has no spread.
    """
    filled = metrics.num_examples > 0
    diverged = metrics.values.get("loss", torch.zeros(1)).isnan()
    means = {}
    for name, value in metrics.values.items():
        counted = filled & (~value.isnan() | diverged)
        weight = metrics.weight[counted]
        means[name] = float((value[counted] * weight).sum() / weight.sum())
    found = {**means, **metrics.pooled}
    for name in metrics.spread if metrics.of_clients else ():
        value = metrics.values[name]
        known = filled & (~value.isnan() | diverged)
        value = value[known if known.any() else filled]  # NaN where no client has it
        worst = value.sort(descending=falls(name)).values
        found.setdefault(f"{name}_std", float(value.std(correction=0)))
        tenth = max(1, round(0.1 * len(worst)))
        found.setdefault(f"{name}_worst10", float(worst[:tenth].mean()))
    return found
