"""Reduces a cohort's uploads with any aggregation rule, which sees all of them at once."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Known, Layout
from flfast.channel.reduced import Reduced, Specs
from flfast.distributed.world import World, all_reduce, spec
from flfast.models.adapters.layer_names import layer_of
from flfast.state.precision import has_room, widest_float
from flfast.state.stack import check_same_leaves
from flfast.state.tree import Tree, leaves, to_host, tree_map
from flfast.state.vector import from_vectors, to_vectors, vector_sizes

CPU = torch.device("cpu")


class Basis(NamedTuple):
    """What a rule may compare uploads with.

    Attributes:
        num_clients: N, of the population.
        memory: memory of the rule after the last round; empty before the first.
        trusted: upload of training on the server's own examples; empty if the rule does not ask
            for it.
    """

    num_clients: int
    memory: Tree = {}  # noqa: RUF012 - never changed
    trusted: Tree = {}  # noqa: RUF012 - never changed


NO_BASIS = Basis(0)


class RowReduction:
    """Any aggregation rule; every rank holds one row per client of the cohort. See `Reduction`.

    Rows are in the order of the cohort, so that every number of ranks gives the same result.
    Counts, such as local steps and BatchNorm's batches, are no part of the rows. Their result is
    the median over the uploads that the rule selected (the lower of the two middle values).
    `counted` are the names of the parts that are counts. Rows are on the device of the uploads,
    where the rule combines them if it can; the result is on the CPU.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        cohort: Sequence[int],
        counted: Collection[str],
        basis: Basis = NO_BASIS,
    ) -> None:
        assert aggregation.combine is not None
        self._rule, self._is_counted, self._basis = aggregation, counted, basis
        self._cohort = torch.tensor(list(cohort), dtype=torch.int64)
        self._place = {client_id: place for place, client_id in enumerate(cohort)}
        self._present = torch.zeros(len(cohort), dtype=torch.int64)
        self._weights = torch.zeros(len(cohort), dtype=torch.float64)
        self._like: Tree | None = None

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`."""
        self._allocate(upload)
        check_same_leaves(upload, self._like or {}, f"client {client_id}")
        place, (learned, counted) = self._place[client_id], to_vectors(upload, self._is_counted)
        self._learned[place], self._counted[place] = learned, counted
        self._present[place], self._weights[place] = 1, weight

    def withdraw(self, client_id: int) -> None:
        """Take back an upload that was added."""
        self._present[self._place[client_id]] = 0

    def _allocate(self, like: Tree) -> None:
        """Allocate the rows, unless an earlier upload did."""
        if self._like is None:
            self._like = spec(like)
            num, sizes = len(self._cohort), vector_sizes(like, self._is_counted)
            num_bytes = num * sizes.learned * sizes.dtype.itemsize
            device = next((x.device for x in leaves(like) if not x.is_meta), CPU)
            there = device if has_room(num_bytes, device) else CPU
            self._learned = torch.zeros(num, sizes.learned, dtype=sizes.dtype, device=there)
            wide = widest_float(device)
            self._counted = torch.zeros(num, sizes.counted, dtype=wide, device=device)

    def specs(self) -> list[Tree | None]:
        """See `Reduction`."""
        return [spec(self._like)]

    def combine(self, world: World, specs: Specs | None = None) -> Reduced:
        """See `Reduction`."""
        (like,) = self.specs() if specs is None else specs
        if like is None:
            return self._none("")
        self._allocate(like)
        if world.size > 1:
            # Each row is zero on all ranks but one, so the sum is an exact copy.
            for part in (self._present, self._weights, self._learned, self._counted):
                all_reduce(world, part)
        present = self._present.bool()
        num = int(present.sum())
        compares = self._learned.shape[1] > 0
        if num < self._rule.min_uploads and (compares or not num):
            return self._none(f"{self._rule.reason} uploads for {self._rule.name}, {num} arrived")
        if self._rule.trusted and not self._basis.trusted:
            return self._none("training on the server's own examples gave NaN or infinity")
        learned, counted = (_rows(part, present) for part in (self._learned, self._counted))
        if compares:
            found = self._combined(learned, present, like)
        else:  # all that is learned reaches the server in rows: there is nothing to select by
            found = Combined(learned[0], torch.ones(num, dtype=torch.bool), self._basis.memory)
        host = to_host({**found._asdict(), "counted": counted})
        counted, found = host.pop("counted"), Combined(**host)
        left_out = frozenset(self._cohort[present][~found.used].tolist())
        if len(left_out) == num:
            shortage = f"{self._rule.name} uses none of {num} uploads"
            return Reduced(None, left_out, shortage, memory=found.memory)
        counters = counted[found.used].median(dim=0).values if counted.shape[1] else counted[0]
        mean = from_vectors(found.vector, counters, like, self._is_counted)
        return Reduced(mean, left_out, memory=found.memory)

    def _none(self, shortage: str) -> Reduced:
        return Reduced(None, shortage=shortage, memory=self._basis.memory)

    def _combined(self, rows: Tensor, present: Tensor, like: Tree) -> Combined:
        """The rule's result for the rows [K, D] that are present."""
        rule, basis = self._rule, self._basis
        assert rule.combine is not None
        if not rule.on_device or widest_float(rows.device) != torch.float64:
            rows = rows.cpu()
        args: list[Tensor | Known] = [rows, self._weights[present].to(rows.device)]
        if rule.asks:
            layout = Layout(
                basis.num_clients, rows.shape[1], last_layer(like, self._is_counted), rows.dtype
            )
            memory = basis.memory
            if not memory and rule.memory is not None:
                memory = rule.memory(layout)
            trusted = torch.zeros(0, dtype=rows.dtype)
            if rule.trusted:
                own = {name: basis.trusted[name] for name in like}
                trusted = to_vectors(own, self._is_counted)[0]
            memory = tree_map(lambda leaf: leaf.to(rows.device), memory)
            trusted = trusted.to(rows.device)
            args.append(Known(layout, self._cohort[present], memory, trusted))
        found: Combined = rule.combine(*args)
        return found


def last_layer(upload: Tree, counted: Collection[str]) -> slice:
    """Columns of `params` that belong to the model's last layer; all if there are no `params`.

    The upload may consist of meta tensors.
    """
    num_before = 0
    for name, part in upload.items():
        if name == "params" and name not in counted and part:
            break
        num_before += vector_sizes({name: part}, counted).learned
    else:
        return slice(0, num_before)
    layer = layer_of(list(part)[-1])
    own = {name: leaf for name, leaf in part.items() if layer_of(name) == layer}
    stop = num_before + vector_sizes({"params": part}, ()).learned
    return slice(stop - vector_sizes({"params": own}, ()).learned, stop)


def _rows(part: Tensor, present: Tensor) -> Tensor:
    """The rows that are present; avoids a copy where all are."""
    return part if bool(present.all()) else part[present.to(part.device)]
