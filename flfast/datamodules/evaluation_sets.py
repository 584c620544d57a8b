"""Evaluation sets: every example that any set reads, predicted once."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import lightning as L
import numpy as np

from flfast.datamodules.batches import WHOLE, Batch, EvalLoader, RankShare, num_limited
from flfast.datamodules.federated import FederatedDataModule, transform_batch
from flfast.datamodules.splits import ClientIndices
from flfast.randomness import generator

OWN = {"personal", "finetuned", "new_finetuned"}
"""Sets that each client predicts with a model of its own; `val` joins either kind."""


class EvaluationSet(NamedTuple):
    """Which predictions make up a set, and whose they are. m examples, G groups.

    Attributes:
        positions: int64 [m], into the predictions of the pass.
        group: int64 [m], in [0, num_groups): the client, or 0 for the central test set.
        num_groups: G.
    """

    positions: np.ndarray
    group: np.ndarray
    num_groups: int


class EvaluationPart(L.LightningDataModule):
    """Test loader of a pass, or of a part of it that holds whole clients.

    Attributes:
        clients: whose own models predict, in the order of the batches; none is the server's.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        indices: np.ndarray,
        owner: np.ndarray | None,
        share: RankShare,
    ) -> None:
        super().__init__()
        self.data, self.indices, self.owner, self._share = data, indices, owner, share
        self.clients: list[int] = []
        if owner is not None:
            self.clients = owner[np.flatnonzero(np.diff(owner, prepend=-1))].tolist()

    def test_dataloader(self) -> EvalLoader:
        """This rank's examples of the pass."""
        return self.data.eval_loader(self.indices, self.owner, self._share)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise on the device."""
        return transform_batch(self, self.data.examples, batch)


class EvaluationDataModule(EvaluationPart):
    """One evaluation pass, and the sets its predictions fall into.

    Args:
        data: set up.
        names: of the sets: `global`, `local` and `new`, with the server's model, or of `OWN`, each
            client with its own; `val` with either.
        limit: batches of the pass, as `trainer.limit_test_batches`: a share or a number.
        share: which part of the pass this rank predicts.
        together: the share is of every batch, so that all ranks have equally many.

    Attributes:
        personal: whether each client is predicted with its own model.
        together: as given.
        sets: by name; positions count over the parts of all ranks, in the ranks' order.
        indices: example numbers that this rank predicts, or with `together` all ranks.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        names: Sequence[str],
        *,
        limit: float | int = 1.0,
        share: RankShare = WHOLE,
        together: bool = False,
    ) -> None:
        self.personal, self.together = not OWN.isdisjoint(names), together
        parts = {name: part for name in names if len((part := _members(data, name))[0])}
        indices = np.concatenate([part[0] for part in parts.values()] or [np.zeros(0, np.int64)])
        owner = np.concatenate([part[1] for part in parts.values()] or [np.zeros(0, np.int64)])
        if self.personal:
            order = np.argsort(owner, kind="stable")
        else:
            # A client's test example may be central too; it is predicted once. Mixed, so that a
            # limited pass is a fair sample.
            indices, inverse = np.unique(indices, return_inverse=True)
            order = generator(data.seed, "evaluation").permutation(len(indices))
        num = min(len(order), num_limited(len(order), data.loading.eval_batch_size, limit))
        order = order[:num]
        if not self.personal:
            order.sort()  # neighbours in memory are read three times as fast
        mine = slice(0, num) if together else share.slice(num)
        if self.personal:
            # A client's state lives on one rank. Clients of one size next to each other can be
            # stacked without padding.
            rank_of = np.zeros(num, np.int64) if together else owner[order] % share.size
            size = np.bincount(owner[order], minlength=data.num_clients)[owner[order]]
            order = order[np.lexsort((owner[order], size, rank_of))]
            if not together:
                mine = slice(*np.searchsorted(np.sort(rank_of), [share.rank, share.rank + 1]))
        super().__init__(
            data,
            indices[order[mine]],
            owner[order[mine]] if self.personal else None,
            share if together else WHOLE,
        )
        positions = np.full(len(indices), num)
        positions[order] = self._places() if together else np.arange(num)
        if not self.personal:
            positions = positions[inverse]
        self.sets = {}
        for name, (_, groups) in parts.items():
            places, positions = np.split(positions, [len(groups)])
            kept = places < num
            num_groups = 1 if name == "global" else data.num_clients
            self.sets[name] = EvaluationSet(places[kept], groups[kept], num_groups)

    def parts(self, num_clients: int) -> Iterator[EvaluationPart]:
        """The pass of clients' own models in parts of at most so many clients."""
        assert self.owner is not None
        starts = np.flatnonzero(np.diff(self.owner, prepend=-1))[::num_clients]
        for start, stop in pairwise([*starts.tolist(), len(self.owner)]):
            part = slice(start, stop)
            yield EvaluationPart(self.data, self.indices[part], self.owner[part], self._share)

    def _places(self) -> np.ndarray:
        """Where each example of the pass stands, once every rank's parts of batches are joined."""
        shares = [RankShare(rank, self._share.size) for rank in range(self._share.size)]
        bounds = self.test_dataloader().bounds()
        parts = [part for share in shares for b in bounds if (part := share.of(b))[2]]
        joined = np.concatenate([np.arange(start, stop) for start, stop, _ in parts])
        return np.argsort(joined)


def _members(data: FederatedDataModule, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Example numbers of a set and their clients, int64 [m] each."""
    if name == "global":
        return data.central_test, np.zeros_like(data.central_test)
    split: ClientIndices = data.splits["val" if name == "val" else "test"]
    split = split.only(data.held_out if name.startswith("new") else data.members)
    return split.indices, split.owner()
