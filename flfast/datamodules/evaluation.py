"""Evaluation sets: every example that any set reads, predicted once."""

from typing import NamedTuple

import lightning as L
import numpy as np

from flfast.datamodules.batches import Batch, EvalLoader
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
        personal: predict every client's own examples, each with its client's model, instead of
            the central test set and all clients' own with the server's.
        with_val: whether this pass covers the validation examples.
    """

    def __init__(self, data: FederatedDataModule, *, personal: bool, with_val: bool) -> None:
        super().__init__()
        self.data = data
        parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if not personal:
            parts["global"] = data.central_test, np.zeros_like(data.central_test)
        for name, split in (("personal" if personal else "local", "test"), ("val", "val")):
            if split == "test" or with_val:
                parts[name] = data.splits[split].indices, data.splits[split].owner()
        parts = {name: part for name, part in parts.items() if len(part[0])}
        indices = np.concatenate([part[0] for part in parts.values()] or [np.zeros(0, np.int64)])
        owner = np.concatenate([part[1] for part in parts.values()] or [np.zeros(0, np.int64)])
        if personal:
            order = np.argsort(owner, kind="stable")
            self.indices, self.owner = indices[order], owner[order]
            positions = np.argsort(order, kind="stable")
        else:
            # A client's test example may be central too; it is predicted once.
            unique, inverse = np.unique(indices, return_inverse=True)
            # Mixed, so that a limited pass is a fair sample.
            order = generator(data.seed, "evaluation").permutation(len(unique))
            self.indices, positions = unique[order], np.argsort(order)[inverse]
        self.sets = {}
        for name, (_, owners) in parts.items():
            places, positions = np.split(positions, [len(owners)])
            num_groups = 1 if name == "global" else data.num_clients
            self.sets[name] = EvaluationSet(places, owners, num_groups)
        self.personal = personal

    def test_dataloader(self) -> EvalLoader:
        """All examples of the pass."""
        return self.data.eval_loader(self.indices, self.owner if self.personal else None)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise on the device."""
        return transform_batch(self, self.data.examples, batch)
