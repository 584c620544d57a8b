"""The LightningModule of the fused engine: one training step trains all clients of a rank."""

from collections.abc import Callable, Iterator, Sequence

import lightning as L
from torch.optim import Optimizer

from flfast.lit.batchnorm import freeze
from flfast.lit.local_module import LocalModule


class CohortModule(L.LightningModule):
    """Manual optimization, because a compiled program takes the local steps.

    Device, precision and strategy are the Trainer's.
    """

    def __init__(self, local: LocalModule, train_clients: Callable[[Sequence[int]], None]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.local = local
        self.train_clients = train_clients

    def configure_optimizers(self) -> list[Optimizer]:
        """No optimizer: the program updates the parameters."""
        return []

    def on_train_start(self) -> None:
        """Freeze BatchNorm if configured."""
        if self.local.freeze_batchnorm:
            freeze(self.local.model, frozen=True)

    def on_train_end(self) -> None:
        """Unfreeze BatchNorm: Lightning warns of layers that enter training in eval mode."""
        if self.local.freeze_batchnorm:
            freeze(self.local.model, frozen=False)

    def training_step(self, batch: Sequence[int], batch_idx: int) -> None:
        """Train the clients whose ids make up the batch."""
        self.train_clients(batch)


class CohortLoader:
    """A loader of one batch: the ids of the clients that this rank trains in a round."""

    def __init__(self, clients: Sequence[int]) -> None:
        self._clients = clients

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Sequence[int]]:
        yield self._clients
