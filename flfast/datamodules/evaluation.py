"""Evaluation sets: every example that any set reads, predicted once."""

from collections.abc import Sequence
from typing import NamedTuple

import lightning as L
import numpy as np

from flfast.datamodules.batches import WHOLE, Batch, EvalLoader, RankShare, num_limited
from flfast.datamodules.federated import FederatedDataModule, transform_batch
from flfast.randomness import generator


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


class EvaluationDataModule(L.LightningDataModule):
    """Test loader of one evaluation pass, and the sets its predictions fall into.

    Args:
        data: set up.
        names: of the sets: `global` and `local`, with the server's model, or `personal`, each
            client with its own; `val` with either.
        limit: batches of the pass, as `trainer.limit_test_batches`: a share or a number.
        share: which part of the pass this rank predicts.
        together: the share is of every batch, so that all ranks have equally many.

    Attributes:
        personal: whether each client is predicted with its own model.
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
        super().__init__()
        self.data, self.personal = data, "personal" in names
        self._share = share if together else WHOLE
        parts = {name: part for name in names if len((part := _members(data, name))[0])}
        indices = np.concatenate([part[0] for part in parts.values()] or [np.zeros(0, np.int64)])
        owner = np.concatenate([part[1] for part in parts.values()] or [np.zeros(0, np.int64)])
        self.owner: np.ndarray | None = None
        if self.personal:
            order = np.argsort(owner, kind="stable")  # no batch spans two clients
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
        if self.personal and not together:
            # A client's state lives on one rank.
            rank_of = owner[order] % share.size
            order = order[np.argsort(rank_of, kind="stable")]
            mine = slice(*np.searchsorted(np.sort(rank_of), [share.rank, share.rank + 1]))
        if self.personal:
            self.owner = owner[order[mine]]
        self.indices = indices[order[mine]]
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

    def _places(self) -> np.ndarray:
        """Where each example of the pass stands, once every rank's parts of batches are joined."""
        shares = [RankShare(rank, self._share.size) for rank in range(self._share.size)]
        bounds = self.test_dataloader().bounds()
        parts = [part for share in shares for b in bounds if (part := share.of(b))[2]]
        joined = np.concatenate([np.arange(start, stop) for start, stop, _ in parts])
        return np.argsort(joined)

    def test_dataloader(self) -> EvalLoader:
        """This rank's examples of the pass."""
        return self.data.eval_loader(self.indices, self.owner, self._share)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise on the device."""
        return transform_batch(self, self.data.examples, batch)


def _members(data: FederatedDataModule, name: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "global":
        return data.central_test, np.zeros_like(data.central_test)
    split = data.splits["val" if name == "val" else "test"]
    return split.indices, split.owner()
