"""The contract: an aggregation rule is a pure function of a cohort's uploads, one row each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from flfast.state.capabilities import NEUTRAL, Capabilities, breaking, needing
from flfast.state.tree import Tree

BY_ROW = needing("messages", "several uploads", "equal uploads") | breaking(
    "it reads single uploads", "sums"
)
"""Of all rules but the mean."""
BY_TRUST = BY_ROW | needing("server examples", "one broadcast")
"""Of rules that compare uploads with the server's own."""


class Combined(NamedTuple):
    """The result of combining K uploads.

    Attributes:
        vector: [D], in the dtype of the rows.
        used: bool [K], uploads that entered the result; Krum, for one, discards the others. If
            there are none, the round leaves the model as it is.
        memory: for the next round; of rules that have a memory.
    """

    vector: Tensor
    used: Tensor
    memory: Tree = {}  # noqa: RUF012 - never changed


class Layout(NamedTuple):
    """What is the same in all rounds of a run.

    Attributes:
        num_clients: N, of the population.
        num_values: D, of an upload.
        last_layer: columns of a row that hold the parameters of the model's last layer.
        dtype: data type of the rows.
    """

    num_clients: int
    num_values: int
    last_layer: slice
    dtype: torch.dtype


class Known(NamedTuple):
    """What a rule with a memory, or with a trusted change, gets beside the rows.

    Attributes:
        layout: layout of the rows.
        clients: ids of the rows, int64 [K].
        memory: memory of the last round in which it combined uploads; at first that of
            `Aggregation.memory`.
        trusted: change that training on the server's own examples gave, [D]; empty for rules that
            do not ask for it.
    """

    layout: Layout
    clients: Tensor
    memory: Tree = {}  # noqa: RUF012 - never changed
    trusted: Tensor = torch.zeros(0)


@dataclass(frozen=True)
class Aggregation:
    """An aggregation rule.

    Attributes:
        name: for messages.
        combine: (rows [K, D], weights float64 [K]) -> `Combined`. Rows are uploads. All
            values are finite, K is at least `min_uploads`, and rows are in the order of the
            cohort. With `memory` or `trusted`, it gets a third argument, `Known`. None is the
            weighted mean, which needs a running sum only.
        min_uploads: fewest uploads that it can combine, >= 1.
        reason: which options require them, for messages.
        memory: layout -> memory before round 1. It must be small beside the rows, is the same on
            every rank, and is part of checkpoints. None: the rule remembers nothing.
        trusted: whether it compares uploads with a change of the server's own, which needs
            `split.server_examples`.
        on_device: whether `combine` may get rows on a GPU, and all else that it gets there except
            for `Known.clients`. Its results may be there, too. Otherwise the rows are copied to
            the CPU first.
    """

    name: str
    combine: Callable[..., Combined] | None = None
    min_uploads: int = 1
    reason: str = ""
    memory: Callable[[Layout], Tree] | None = None
    trusted: bool = False
    on_device: bool = False

    @property
    def asks(self) -> bool:
        """Whether `combine` gets `Known`."""
        return self.memory is not None or self.trusted

    @property
    def capabilities(self) -> Capabilities:
        """What it needs and breaks."""
        if self.combine is None:
            return NEUTRAL
        return BY_TRUST if self.trusted else BY_ROW


Robust = Annotated[Aggregation, BY_ROW]
Trusting = Annotated[Aggregation, BY_TRUST]

MEAN = Aggregation("mean")


def mean() -> Aggregation:
    """The weighted mean; a single attacker can move it anywhere."""
    return MEAN
