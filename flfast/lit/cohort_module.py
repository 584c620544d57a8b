"""The LightningModule of the fused engine: a training step is a whole cohort's."""

from collections.abc import Callable, Iterator, Sequence

import lightning as L
from torch.optim import Optimizer

from flfast.lit.batchnorm import freeze
from flfast.lit.local_module import LocalModule


class CohortModule(L.LightningModule):
    """Clients in training: manual optimization, since a program takes the local steps.

    Device, precision and strategy are the Trainer's.

    Args:
        local: model, algorithm and optimizer.
        train_clients: local training of clients, by number.
    """

    def __init__(self, local: LocalModule, train_clients: Callable[[Sequence[int]], None]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.local = local
        self.train_clients = train_clients

    def configure_optimizers(self) -> list[Optimizer]:
        """None: the program updates."""
        return []

    def on_train_start(self) -> None:
        """Hold BatchNorm fixed if asked to."""
        if self.local.freeze_batchnorm:
            freeze(self.local.model, frozen=True)

    def on_train_end(self) -> None:
        """Let go of it."""
        if self.local.freeze_batchnorm:
            freeze(self.local.model, frozen=False)

    def training_step(self, batch: Sequence[int], batch_idx: int) -> None:
        """Local training of clients, by number."""
        self.train_clients(batch)


class CohortDataModule(L.LightningDataModule):
    """One batch: the clients that this rank trains in a round. They bring their own data."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__()
        self.clients = clients

    def train_dataloader(self) -> "_Once":
        """The clients, by number."""
        return _Once(self.clients)


class _Once:
    """A loader of one batch."""

    def __init__(self, batch: Sequence[int]) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Sequence[int]]:
        yield self._batch
