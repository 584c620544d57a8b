"""Reduces a cohort's uploads to one: by a running weighted mean, or from all uploads at once.

`engines/delivery.py` adds each upload that arrives through the channel. After local training
`engines/engine.py` combines the reductions of all ranks into the mean for the server's step.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flfast.algorithms.contract import Part
from flfast.channel.aggregations.aggregation import Aggregation
from flfast.channel.reduced import Reduced, Reduction, Specs
from flfast.channel.row_reduction import NO_BASIS, Basis, RowReduction
from flfast.distributed.world import World, gather, reduce_mean, spec
from flfast.state.stack import check_same_leaves, structure
from flfast.state.tree import Tree, WeightedMean, to_host, tree_map


def reduction_for(
    aggregation: Aggregation,
    cohort: Sequence[int],
    parts: Mapping[str, Part],
    basis: Basis = NO_BASIS,
) -> Reduction:
    """The reduction of K clients' uploads that an aggregation rule and the parts of them need."""
    counted = frozenset(name for name, part in parts.items() if not part.learned)
    if aggregation.combine is None:
        combined: Reduction = MeanReduction()
    else:
        combined = RowReduction(aggregation, cohort, counted, basis)
    plain = all(part.is_mean for part in parts.values())
    return combined if plain else PartsReduction(combined, cohort, parts, aggregation)


class PartsReduction:
    """Combines each part of the uploads by its own rule. See `Reduction`.

    `combined` combines means; with a robust aggregation, sums, too. Parts that are not named are
    means.
    """

    def __init__(
        self,
        combined: Reduction,
        cohort: Sequence[int],
        parts: Mapping[str, Part],
        aggregation: Aggregation,
    ) -> None:
        self._combined, self._cohort, self._parts = combined, cohort, parts
        self._robust = aggregation.combine is not None
        self._sums, self._rows = MeanReduction(), dict[int, tuple[Tree, float]]()

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`."""
        if missing := self._parts.keys() - upload.keys():
            raise ValueError(f"client {client_id}: the upload has no part {min(missing)}")
        rules = {name: self._rule(name) for name in upload}
        means, sums, rows = (
            {name: part for name, part in upload.items() if rules[name] == rule}
            for rule in ("mean", "sum", "rows")
        )
        self._combined.add(client_id, means, weight)
        self._sums.add(client_id, sums, 1.0)
        self._rows[client_id] = rows, weight

    def _rule(self, name: str) -> str:
        rule = self._parts.get(name, Part()).rule
        # A robust rule combines sums as means, which `combine` multiplies again.
        return "mean" if rule == "sum" and self._robust else rule

    def specs(self) -> list[Tree | None]:
        """See `Reduction`."""
        return [*self._combined.specs(), *self._sums.specs()]

    def combine(self, world: World, specs: Specs | None = None) -> Reduced:
        """See `Reduction`."""
        reduced = self._combined.combine(world, specs and specs[:1])
        sums = self._sums.combine(world, specs and specs[1:])
        if reduced.mean is None:
            return reduced
        gathered = [pair for part in gather(world, self._rows) for pair in part.items()]
        rows = {k: row for k, row in gathered if k not in reduced.left_out}
        clients = [client_id for client_id in self._cohort if client_id in rows]
        by_name = {**reduced.mean, **(sums.mean or {})}
        mean = {name: self._scaled(name, part, len(rows)) for name, part in by_name.items()}
        return reduced._replace(
            mean=divided(mean, self._parts),
            rows=tree_map(lambda *leaf: torch.stack(leaf), *(rows[k][0] for k in clients)),
            clients=torch.tensor(clients),
            weights=torch.tensor([rows[k][1] for k in clients], dtype=torch.float64),
        )

    def _scaled(self, name: str, part: Any, num: int) -> Any:
        is_sum = self._parts.get(name, Part()).rule == "sum"
        return _map(lambda leaf: leaf * num, part) if is_sum else part


def divided(mean: Tree, parts: Mapping[str, Part]) -> Tree:
    """Combined parts, those with `Part.over` divided by that other part."""

    def ratio(name: str) -> Any:
        over = parts.get(name, Part()).over
        return mean[name] if over is None else _map(_ratio, mean[name], mean[over])

    return {name: ratio(name) for name in mean}


def _map(fn: Callable[..., Tensor], part: Any, *others: Any) -> Any:
    """`tree_map` for parts, which may be single leaves; a leaf may stand for a tree of others."""
    if not isinstance(part, dict):
        return fn(part, *others)
    return {
        name: _map(fn, leaf, *(o[name] if isinstance(o, dict) else o for o in others))
        for name, leaf in part.items()
    }


def _ratio(value: Tensor, over: Tensor) -> Tensor:
    aligned = over.reshape(over.shape + (1,) * (value.ndim - over.ndim))
    ratio = torch.where(aligned == 0, 0, value / aligned)
    # Counts of float64 must not make weights float64, which would double what is sent next.
    return ratio.to(value.dtype) if value.is_floating_point() else ratio


class MeanReduction:
    """The weighted mean, in the memory of one upload. See `Reduction`.

    The sum is on the device of the uploads, the mean on the CPU.
    """

    def __init__(self) -> None:
        self._mean = WeightedMean()
        self._structure: Hashable | None = None
        self._weights: dict[int, float] = {}

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`."""
        self._check(client_id, upload)
        self._mean.add(upload, weight)
        self._weights[client_id] = weight

    def add_change(self, client_id: int, weights: tuple[Tree, Tree], weight: float) -> None:
        """Add the change between two weights, leaf by leaf; see `WeightedMean.add_change`."""
        start, end = weights
        self._check(client_id, end)
        self._mean.add_change(start, end, weight)
        self._weights[client_id] = weight

    def withdraw(self, client_id: int) -> None:
        """Take back an upload of zeros that was added."""
        del self._weights[client_id]
        self._mean.weight = sum(self._weights.values(), 0.0)

    def add_rows(
        self, clients: Sequence[int], rows: Sequence[Tensor], like: Tree, weights: Sequence[float]
    ) -> None:
        """Add uploads of clients in their order, as `WeightedMean.add_rows` takes them."""
        if clients:
            self._check(clients[0], like)
            self._weights |= zip(clients, weights, strict=True)
            self._mean.add_rows(rows, like, weights)

    def _check(self, client_id: int, upload: Tree) -> None:
        if self._structure is None:
            self._structure = structure(upload)
        elif structure(upload) != self._structure:
            check_same_leaves(upload, self._mean.like, f"client {client_id}")

    def specs(self) -> list[Tree | None]:
        """See `Reduction`."""
        return [spec(None if self._mean.total is None else self._mean.like)]

    def combine(self, world: World, specs: Specs | None = None) -> Reduced:
        """See `Reduction`."""
        mean = self._mean if specs is None else reduce_mean(world, self._mean, specs[0])
        return Reduced(to_host(mean.result()) if mean.weight else None)
