"""What collects a cohort's uploads, and what comes out of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from flfast.channel.secure.round_terms import Traffic
from flfast.distributed.world import World
from flfast.state.tree import Tree

Specs = Sequence[Tree | None]
"""Shapes and dtypes of trees, as meta tensors."""


class Reduced(NamedTuple):
    """The result of a reduction.

    Attributes:
        mean: the combined parts of the uploads; None if too few arrived.
        left_out: clients whose uploads the aggregation did not select.
        shortage: the reason if some, but too few uploads arrived; otherwise empty.
        rows: parts that are not combined, each leaf [K, ...].
        clients: ids of the rows, int64 [K].
        weights: weights of the rows, float64 [K].
        traffic: bytes of each client that takes part in secure aggregation.
        unhelpful: reasons why clients dropped out of secure aggregation, after their uploads.
        memory: memory of the aggregation, for the next round.
    """

    mean: Tree | None
    left_out: frozenset[int] = frozenset()
    shortage: str = ""
    rows: Tree = {}  # noqa: RUF012 - never changed
    clients: Tensor = torch.zeros(0, dtype=torch.int64)
    weights: Tensor = torch.zeros(0, dtype=torch.float64)
    traffic: Traffic | None = None
    unhelpful: Mapping[int, str] = {}
    memory: Tree = {}  # noqa: RUF012 - never changed


class Reduction(Protocol):
    """Collects the uploads of this rank's clients, and combines them with other ranks'."""

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """Add the upload of a client of the cohort.

        Raises:
            ValueError: if its leaves differ from those of earlier uploads.
        """

    def specs(self) -> list[Tree | None]:
        """Shapes and dtypes of what this rank added, for `common_spec`; None: nothing yet."""

    def combine(self, world: World, specs: Specs | None = None) -> Reduced:
        """Combine all ranks' uploads; every rank gets the same result. Collective.

        `specs` are what the ranks agreed on; None: this rank is alone.
        """
