"""Data parallelism in one process: each batch is split over the devices, gradients add up.

Lightning 2 has no `dp` for its Trainer. Here every device holds a copy of the model's structure;
parameters travel to it inside of autograd, so that their gradients come back and add up by
themselves. On the CPU the copies are threads over the same parameters.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
from torch import Tensor, nn

from flfast.datamodules.batches import Batch, RankShare
from flfast.lit.module import LocalModule


class DataParallelStrategy(ParallelStrategy):
    """Runs a `LocalModule`'s training step on several devices of one process.

    The loss of each part is weighted by its share of the batch, so uneven parts are exact.
    BatchNorm sees the parts, as with torch's DataParallel; the first device's statistics count.
    """

    strategy_name = "dp"
    _replicas: Sequence[nn.Module] = ()

    @property
    def root_device(self) -> torch.device:
        """Where the parameters live."""
        assert self.parallel_devices
        return self.parallel_devices[0]

    @property
    def world_size(self) -> int:
        """One process, whatever world it is part of."""
        return 1

    @property
    def global_rank(self) -> int:
        """The only rank there is for this Trainer."""
        return 0

    @property
    def local_rank(self) -> int:
        """The only rank there is for this Trainer."""
        return 0

    @property
    def is_global_zero(self) -> bool:
        """Always."""
        return True

    def model_to_device(self) -> None:
        """Take the parameters to the first device."""
        assert self.lightning_module is not None
        self.lightning_module.to(self.root_device)

    def setup(self, trainer: Any) -> None:
        """Copy the model's structure to the other devices."""
        super().setup(trainer)
        assert self.parallel_devices and isinstance(self.lightning_module, LocalModule)
        model = self.lightning_module.model
        self._replicas = [deepcopy(model).to(device) for device in self.parallel_devices[1:]]
        self._pool = ThreadPoolExecutor(len(self.parallel_devices))

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """One local step's objective, computed in parts; weighted sums of their results."""
        assert self.parallel_devices
        size, devices = len(batch.targets), self.parallel_devices
        parts = [(i, RankShare(i, len(devices)).slice(size)) for i in range(len(devices))]
        parts = [(i, part) for i, part in parts if part.stop > part.start]
        futures = [self._pool.submit(self._part, i, batch, part) for i, part in parts]
        total: dict[str, Tensor] = {}
        for (_, part), future in zip(parts, futures, strict=True):
            share = (part.stop - part.start) / size
            for name, value in future.result().items():
                own = value.to(self.root_device) * share
                total[name] = total[name] + own if name in total else own
        return total

    def _part(self, index: int, batch: Batch, part: slice) -> dict[str, Tensor]:
        assert self.parallel_devices and isinstance(self.lightning_module, LocalModule)
        device, module = self.parallel_devices[index], self.lightning_module
        inputs, targets = (x[part].to(device) for x in (batch.inputs, batch.targets))
        own = batch._replace(inputs=inputs, targets=targets)
        # Autocast is a thread's own.
        with self.precision_plugin.train_step_context():
            if index == 0:
                return module.training_step(own, 0)
            return module.replica_step(self._replicas[index - 1], own, device)

    def teardown(self) -> None:
        """Let the copies go."""
        self._replicas = ()
        self._pool.shutdown()
        super().teardown()

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """There is nothing to reduce over."""
        return tensor

    def all_gather(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """There is nobody to gather from."""
        return tensor

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """There is nobody to wait for."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """There is nobody to tell."""
        return obj


StrategyRegistry.register("dp", DataParallelStrategy, description="devices of one process")
