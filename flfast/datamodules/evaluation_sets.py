"""Evaluation sets: every example that any set contains is predicted once."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import lightning as L
import numpy as np

from flfast.datamodules.backdoor import Backdoor
from flfast.datamodules.batches import WHOLE, Batch, EvalLoader, RankShare, num_limited
from flfast.datamodules.examples import ClientIndices
from flfast.datamodules.population import Kinds, Population, transform_batch
from flfast.state.options import num_of_share
from flfast.state.randomness import generator, uniforms

OWN = {"personal", "personal_val", "personal_train", "finetuned", "new_finetuned"}
"""Sets that each client predicts with its own model."""
ATTACK = "attack"
"""The set of central test examples with the attackers' trigger; alone in its pass."""


class EvaluationSet(NamedTuple):
    """The predictions of a pass that belong to a set. m examples, G groups.

    Attributes:
        positions: positions among the predictions of the pass, int64 [m].
        group: the client, or -1 for a central set, int64 [m].
        groups: those that have examples, ascending, int64 [G]. A few examples of a large
            population are measured in the time that they take.
        place: place of each example's group among these, int64 [m].
    """

    positions: np.ndarray
    group: np.ndarray
    groups: np.ndarray
    place: np.ndarray


class EvaluationPart(L.LightningDataModule):
    """Test loader of a pass, or of a part of a pass with all examples of some clients.

    Attributes:
        clients: clients whose own models predict, in order; empty if the server's model does.
        backdoor: its trigger is added to the inputs; None adds none.
    """

    def __init__(
        self,
        data: Population,
        indices: np.ndarray,
        owner: np.ndarray | None,
        rank_share: RankShare,
    ) -> None:
        super().__init__()
        self.data, self.indices, self.owner, self._rank_share = data, indices, owner, rank_share
        self.backdoor: Backdoor | None = None
        self.clients: list[int] = []
        if owner is not None:
            self.clients = owner[np.flatnonzero(np.diff(owner, prepend=-1))].tolist()

    def test_dataloader(self) -> EvalLoader:
        """This rank's batches of the pass, on the Trainer's device if the examples are there."""
        device = None if self.trainer is None else self.trainer.strategy.root_device
        return self.data.eval_loader(self.indices, self.owner, self._rank_share, device=device)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise the batch on its device, with the trigger if there is one."""
        if self.backdoor is not None:
            batch = self.backdoor.triggered(batch)
        return transform_batch(self, self.data.examples, batch)


class EvaluationDataModule(EvaluationPart):
    """An evaluation pass, and the sets that its predictions belong to.

    Args:
        names: names of the sets: `global`, `local`, `new`, `val` and `train`, which the server's
            model predicts, `ATTACK` alone, or those of `OWN`.
        limit: most batches of the pass, as in `trainer.limit_test_batches`: a fraction or a
            number.
        shard_batches: divide every batch over the ranks, so that all have equally many batches.
            Otherwise the examples of the pass are divided.
        fraction: fraction of each group's examples that are predicted, in (0, 1]; at least one
            example.

    Attributes:
        personal: whether each client's examples are predicted with its own model.
        finetuned: whether that is one which has trained further.
        shard_batches: whether every batch is divided over the ranks.
        sets: evaluation sets by name. Positions count over the predictions of all ranks, in
            order of rank.
        indices: examples that this rank predicts; with `shard_batches`, those of all ranks.
    """

    def __init__(
        self,
        data: Population,
        names: Sequence[str],
        *,
        limit: float | int = 1.0,
        rank_share: RankShare = WHOLE,
        shard_batches: bool = False,
        fraction: float = 1.0,
    ) -> None:
        self.personal, self.finetuned = not OWN.isdisjoint(names), "finetuned" in names
        self.shard_batches = shard_batches
        found = {name: _drawn(*_members(data, name), fraction, data.seed) for name in names}
        members = {name: part for name, part in found.items() if len(part[0])}
        none = np.zeros(0, np.int64)
        indices = np.concatenate([found[0] for found in members.values()] or [none])
        owner = np.concatenate([found[1] for found in members.values()] or [none])
        place = np.arange(len(indices))
        if not self.personal:
            # A client's test example may also be central. The server's model predicts it once.
            indices, place = np.unique(indices, return_inverse=True)
        num = min(len(indices), num_limited(len(indices), data.loading.eval_batch_size, limit))
        if self.personal:
            share = WHOLE if shard_batches else rank_share
            order, own = _personal_order(owner, num, share, data.kinds)
        else:
            # Shuffled before the limit, so that a limited pass is a fair sample; sorted after it,
            # since neighbours in memory are read three times as fast.
            shuffled = generator(data.seed, "evaluation").permutation(len(indices))
            order, own = np.sort(shuffled[:num]), rank_share.slice(num)
        if shard_batches:
            own = slice(0, num)
        whose = owner[order[own]] if self.personal else None
        of_batches = rank_share if shard_batches else WHOLE
        super().__init__(data, indices[order[own]], whose, of_batches)
        if ATTACK in names:
            self.backdoor = data.backdoor
        positions = np.full(len(indices), num)
        positions[order] = self._positions() if shard_batches else np.arange(num)
        self.sets = dict(_split_sets(positions[place], members, num))

    def parts(self, num_clients: int) -> Iterator[EvaluationPart]:
        """Divide a pass of clients' own models into parts: `num_clients` at most, of one kind."""
        assert self.owner is not None
        starts = np.flatnonzero(np.diff(self.owner, prepend=-1))
        kinds = _kind_of(self.owner[starts], self.data.kinds)
        bounds = [0, *(1 + np.flatnonzero(np.diff(kinds))).tolist(), len(starts)]
        of_kinds = [starts[first:last][::num_clients] for first, last in pairwise(bounds)]
        starts = np.concatenate(of_kinds)
        for start, stop in pairwise([*starts.tolist(), len(self.owner)]):
            part = slice(start, stop)
            yield EvaluationPart(self.data, self.indices[part], self.owner[part], self._rank_share)

    def _positions(self) -> np.ndarray:
        """Position of each example of the pass among the predictions of all ranks."""
        shares = [RankShare(rank, self._rank_share.size) for rank in range(self._rank_share.size)]
        bounds = self.test_dataloader().bounds()
        parts = [part for share in shares for b in bounds if (part := share.batch_part(b))[2]]
        joined = np.concatenate([np.arange(start, stop) for start, stop, _ in parts])
        return np.argsort(joined)


def _kind_of(clients: np.ndarray, kinds: Kinds | None) -> np.ndarray:
    return np.zeros_like(clients) if kinds is None else kinds.of[clients]


def _personal_order(
    owner: np.ndarray, num: int, rank_share: RankShare, kinds: Kinds | None
) -> tuple[np.ndarray, slice]:
    """Order of `num` of the examples, and this rank's slice; clients' own models predict them."""
    order = np.argsort(owner, kind="stable")[:num]
    client = owner[order]
    rank_of = client % rank_share.size  # a client's state lives on one of the ranks
    # Neighbours of equal size can be predicted as a stack without padding.
    size = np.bincount(client)[client]
    order = order[np.lexsort((client, size, _kind_of(client, kinds), rank_of))]
    return order, slice(*np.searchsorted(np.sort(rank_of), [rank_share.rank, rank_share.rank + 1]))


def _split_sets(
    positions: np.ndarray, members: dict[str, tuple[np.ndarray, np.ndarray]], num: int
) -> Iterator[tuple[str, EvaluationSet]]:
    """(name, set) of each set; positions of `num` or more are beyond the limit."""
    for name, (_, groups) in members.items():
        own, positions = np.split(positions, [len(groups)])
        kept = own < num
        found = np.unique(groups[kept], return_inverse=True)
        yield name, EvaluationSet(own[kept], groups[kept], *found)


def _drawn(
    indices: np.ndarray, groups: np.ndarray, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The share of each group's examples that are evaluated, rounded up, in the given order."""
    if fraction == 1.0:
        return indices, groups
    # An example has the same number in all sets, so that sets which overlap draw the same ones.
    order = np.lexsort((uniforms(seed, "evaluated examples", indices), groups))
    sizes = np.unique(groups, return_counts=True)[1]
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = np.sort(order[place < np.repeat(num_of_share(fraction, sizes), sizes)])
    return indices[kept], groups[kept]


def _members(data: Population, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Examples of a set and their clients, or -1, int64 [m] each."""
    if name == "global":
        return data.central_test, np.full_like(data.central_test, -1)
    if name == "val" and len(data.central_val):
        return data.central_val, np.full_like(data.central_val, -1)
    if name == ATTACK:
        assert data.backdoor is not None
        concerned = data.backdoor.concerns(data.examples.targets[data.central_test])
        return data.central_test[concerned], np.full(concerned.sum(), -1)
    part = name.removeprefix("personal_")
    split: ClientIndices = data.splits[part if part in {"train", "val"} else "test"]
    split = split.only(data.held_out if name.startswith("new") else data.participants)
    return split.indices, split.owner()
