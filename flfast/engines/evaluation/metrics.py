"""Metrics of an evaluation set by group, usually by client, and their summary.

What is measured is the task's. torchmetrics has no metrics by group; tests compare ours with its.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.datamodules.evaluation_sets import EvaluationSet
from flfast.state.tree import Tree, to_host
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
    task_type: TaskType, sets: Mapping[str, tuple[Statistics, EvaluationSet]]
) -> dict[str, GroupMetrics | None]:
    """Metrics of evaluation sets by group, on the CPU; None if a set has no examples.

    They are computed where the predictions of the whole pass are, and read from there at once.
    """
    known = {name: pair for name, pair in sets.items() if len(pair[1].positions)}
    measured = to_host({name: _measured(task_type, *pair) for name, pair in known.items()})
    metrics = {
        name: _group_metrics(task_type, measured[name])._replace(
            groups=torch.from_numpy(part.groups), single_class=bool(measured[name]["single_class"])
        )
        for name, (_, part) in known.items()
    }
    return {name: metrics.get(name) for name in sets}


def _measured(task_type: TaskType, predictions: Statistics, part: EvaluationSet) -> Tree:
    """What `_group_metrics` reads of a set, and `single_class`, bool []."""
    device = next(iter(predictions.values())).device
    positions = torch.from_numpy(part.positions).to(device)
    chosen = {name: tensor[positions] for name, tensor in predictions.items()}
    place = torch.from_numpy(part.place).to(device)
    measured = _by_group(task_type, chosen, place, len(part.groups))
    classifies = task_type.name == "classification"
    single = _single_class(chosen) if classifies else torch.zeros((), dtype=torch.bool)
    return {**measured, "single_class": single}


def _single_class(statistics: Statistics) -> Tensor:
    scores, targets = statistics["scores"], statistics["targets"]
    # Of most models, few examples tell. A GPU would be waited for.
    if scores.is_cpu and _varies(scores[:_SAMPLE].argmax(dim=1)):
        return torch.tensor(data=False)
    return _varies(targets) & ~_varies(scores.argmax(dim=1))


def _varies(values: Tensor) -> Tensor:
    return (values != values[0]).any()


def group_metrics(
    task_type: TaskType, predictions: Statistics, group: Tensor, num_groups: int
) -> GroupMetrics:
    """Metrics of M predictions by group, int64 [M], in [0, num_groups)."""
    return _group_metrics(task_type, to_host(_by_group(task_type, predictions, group, num_groups)))


def _by_group(
    task_type: TaskType, predictions: Statistics, group: Tensor, num_groups: int
) -> Tree:
    """Attributes of `GroupMetrics` as a tree, where the predictions are."""
    count = torch.bincount(group, minlength=num_groups)
    targets = predictions.get("counts")
    weight = count.double() if targets is None else group_sums(targets, group, num_groups)
    pooled = {}
    if task_type.pooled:
        measured = task_type.by_group(predictions, torch.zeros_like(group), 1)
        pooled = {name: measured[name] for name in task_type.pooled}
    values = task_type.by_group(predictions, group, num_groups)
    return {"num_examples": count, "weight": weight, "values": values, "pooled": pooled}


def _group_metrics(task_type: TaskType, measured: Tree) -> GroupMetrics:
    """Metrics of groups from 0, from what `_by_group` has measured; on the CPU."""
    count, name = measured["num_examples"], task_type.headline
    pooled = {key: float(value) for key, value in measured["pooled"].items()}
    groups, weight, values = torch.arange(len(count)), measured["weight"], measured["values"]
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
