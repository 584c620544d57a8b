"""A client's own metrics as a message, and those of several clients together."""

from collections.abc import Mapping, Sequence

import torch
from pydantic import BaseModel, Field

from flfast.channel.wire import Count, MalformedError, Message, read_facts
from flfast.engines.evaluation.metrics import GroupMetrics
from flfast.tasks.task_type import TaskType


class _SetFacts(BaseModel, strict=True, extra="forbid"):
    num_examples: Count
    weight: float = Field(ge=0, allow_inf_nan=False)
    headline: str
    values: dict[str, float]


class _MetricsFacts(BaseModel, strict=True):
    sets: dict[str, _SetFacts]


def message_of_metrics(found: Mapping[str, GroupMetrics]) -> Message:
    """A client's own metrics by set."""
    sets = {
        name: _SetFacts(
            num_examples=int(metrics.num_examples[0]),
            weight=float(metrics.weight[0]),
            headline=metrics.headline,
            values={key: float(value[0]) for key, value in metrics.values.items()},
        )
        for name, metrics in found.items()
    }
    return Message(_MetricsFacts(sets=sets).model_dump())


def metrics_of(message: Message, client_id: int, task_type: TaskType) -> dict[str, GroupMetrics]:
    """A client's metrics by set, which it has sent.

    Raises:
        MalformedError: if they are not those of the task.
    """
    found: dict[str, GroupMetrics] = {}
    for name, facts in read_facts(_MetricsFacts, message).sets.items():
        if facts.headline != task_type.headline or not {"loss", facts.headline} <= {*facts.values}:
            raise MalformedError(f"{name}: metrics of another task")
        found[name] = GroupMetrics(
            torch.tensor([client_id]),
            torch.tensor([facts.num_examples]),
            torch.tensor([facts.weight], dtype=torch.float64),
            {key: torch.tensor([x], dtype=torch.float64) for key, x in facts.values.items()},
            {},
            facts.headline,
        )
    return found


def joined_metrics(parts: Sequence[GroupMetrics]) -> GroupMetrics:
    """Metrics of several clients; what is no mean over examples is not known of all together."""
    first = parts[0]
    names = [name for name in first.values if all(name in part.values for part in parts)]
    return first._replace(
        groups=torch.cat([part.groups for part in parts]),
        num_examples=torch.cat([part.num_examples for part in parts]),
        weight=torch.cat([part.weight for part in parts]),
        values={name: torch.cat([part.values[name] for part in parts]) for name in names},
    )
