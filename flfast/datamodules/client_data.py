"""The LightningDataModule of one client."""

from functools import cached_property

import lightning as L
import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.batches import (
    WHOLE,
    Batch,
    EvalLoader,
    RankShare,
    TrainLoader,
    local_epoch,
    subset_size,
)
from flfast.datamodules.population import Population, transform_batch
from flfast.state.plan import Batching
from flfast.state.randomness import generator


class ClientDataModule(L.LightningDataModule):
    """The data of one client of a population, in a round from 1.

    `indices` are its training examples to use; None is all.
    """

    def __init__(
        self,
        data: Population,
        client_id: int,
        *,
        batching: Batching,
        round_idx: int = 1,
        rank_share: RankShare = WHOLE,
        indices: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        self.data, self.client_id = data, client_id
        self.indices = data.train_clients.indices_of(client_id) if indices is None else indices
        self.batching = batching
        self.epoch = local_epoch(len(self.indices), batching)
        self.round_idx, self._rank_share = round_idx, rank_share
        path = (round_idx, client_id)
        # Always the same loader, since it counts the epochs.
        self._loader = TrainLoader(
            data.fetch,
            self.indices,
            self.epoch,
            lambda e, n: generator(data.seed, "shuffle", *path, e).permutation(n),
            rank_share,
            counts=data.examples.counts,
        )

    @cached_property
    def _augment_rng(self) -> np.random.Generator:
        return generator(self.data.seed, "augment", self.round_idx, self.client_id)

    def subset(self, fraction: float, stage: int) -> "ClientDataModule":
        """The same data with a random fraction of the training examples, at least one.

        A fraction of 1 returns this object. Each stage has a subset of its own.
        """
        if fraction == 1:
            return self
        rng = generator(self.data.seed, "part", self.round_idx, self.client_id, stage)
        num = subset_size(len(self.indices), fraction)
        chosen = np.sort(rng.choice(self.indices, num, replace=False))
        return ClientDataModule(
            self.data,
            self.client_id,
            batching=self.batching,
            round_idx=self.round_idx,
            rank_share=self._rank_share,
            indices=chosen,
        )

    def train_dataloader(self) -> TrainLoader:
        """The client's training batches."""
        return self._loader

    def next_order(self) -> np.ndarray:
        """Examples of the next local epoch, int64 [M], for engines that cut batches themselves."""
        return self._loader.next_order()

    def augmented(self, inputs: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Training inputs [M, ...], normalised and augmented; draws M augmentations."""
        transform = self.data.examples.transform
        rng = self._augment_rng if transform.augments else None
        return transform(inputs, dtype=dtype, rng=rng)

    def val_dataloader(self) -> EvalLoader:
        """The client's validation examples, or the central or all clients' ones."""
        central = len(self.data.central_val) > 0
        if central or self.data.pooled or self.client_id == self.data.server:
            return self.data.val_dataloader()
        return self.data.eval_loader(self.data.splits["val"].indices_of(self.client_id))

    def test_dataloader(self) -> EvalLoader:
        """The client's own test examples."""
        return self.data.eval_loader(self.data.splits["test"].indices_of(self.client_id))

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise the batch on its device; augment training batches."""
        return transform_batch(self, self.data.examples, batch, rng=self._augment_rng)
