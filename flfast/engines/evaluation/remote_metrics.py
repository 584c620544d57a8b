"""A client's own metrics as a message, and those of several clients together."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import BaseModel, Field

from flfast.channel.wire import MalformedError, Message, Positive, read_facts
from flfast.datamodules.federated import FederatedDataModule
from flfast.engines.evaluation.metrics import GroupMetrics
from flfast.tasks.names import headline, in_order, in_range
from flfast.tasks.task_type import TaskType

_LARGEST = 1e290
"""Finite values beyond it would overflow in a mean. Those of diverged models are far below."""


class _SetFacts(BaseModel, strict=True, extra="forbid"):
    num_examples: Positive
    weight: float = Field(gt=0, le=1e30)
    values: dict[Annotated[str, Field(max_length=100)], float] = Field(max_length=100)


class _MetricsFacts(BaseModel, strict=True):
    sets: dict[str, _SetFacts]


def message_of_metrics(by_set: Mapping[str, GroupMetrics]) -> Message:
    """A client's own metrics by set."""
    sets = {
        name: _SetFacts(
            num_examples=int(metrics.num_examples[0]),
            weight=float(metrics.weight[0]),
            values={key: float(value[0]) for key, value in metrics.values.items()},
        )
        for name, metrics in by_set.items()
    }
    return Message(_MetricsFacts(sets=sets).model_dump())


def metrics_of(
    data: FederatedDataModule, task: TaskType, client_id: int, message: Message
) -> dict[str, GroupMetrics]:
    """A client's metrics by set, which it has sent; `data` says how many examples it has.

    Those of a user's module have names that the server's own trial knows.

    Raises:
        MalformedError: if they are not those of the task, out of their range, or of more examples
            than it has.
    """
    found: dict[str, GroupMetrics] = {}
    num_targets = data.examples.targets[0].numel() if task.counts else 1
    logs = task.name == "module"  # of its metrics, a client has those that it logs there
    for name, facts in read_facts(_MetricsFacts, message).sets.items():
        names, known = {*facts.values}, {*task.metrics}
        if not (names <= known | {"loss"} if logs else names == known):
            raise MalformedError(f"{name}: metrics of another task")
        split = data.splits["val" if name in {"val", "personal_val"} else "test"]
        most = len(split.indices_of(client_id))
        if facts.num_examples > most or facts.weight > facts.num_examples * num_targets:
            raise MalformedError(f"{name}: of more than {most} examples")
        for key, value in facts.values.items():
            if _LARGEST < abs(value) < math.inf or not (logs or in_range(key, value)):
                raise MalformedError(f"{name}: {key} is {value:g}")
        best = headline(facts.values)
        found[name] = GroupMetrics(
            torch.tensor([client_id]),
            torch.tensor([facts.num_examples]),
            torch.tensor([facts.weight], dtype=torch.float64),
            {key: torch.tensor([x], dtype=torch.float64) for key, x in facts.values.items()},
            {},
            best,
            tuple(in_order(facts.values)) if logs else (best,),
        )
    return found


def joined_metrics(parts: Sequence[GroupMetrics]) -> GroupMetrics:
    """Metrics of several clients; what is no mean over examples is not known of all together."""
    names = in_order(name for part in parts for name in part.values)
    unknown = torch.full((1,), torch.nan, dtype=torch.float64)
    return parts[0]._replace(
        groups=torch.cat([part.groups for part in parts]),
        num_examples=torch.cat([part.num_examples for part in parts]),
        weight=torch.cat([part.weight for part in parts]),
        values={n: torch.cat([part.values.get(n, unknown) for part in parts]) for n in names},
        headline=headline(names),
        spread=tuple(dict.fromkeys(name for part in parts for name in part.spread)),
    )
