"""Data parallelism in one process: each batch is split over the devices, gradients add up.

Lightning 2 has no `dp` for its Trainer. Here every device holds a copy of the model's structure;
parameters travel to it inside of autograd, so that their gradients come back and add up by
themselves. On the CPU the copies are threads over the same parameters.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
from torch import Tensor, nn

from flfast.datamodules.batches import Batch, RankShare
from flfast.lit.local_module import LocalModule


class DataParallelStrategy(ParallelStrategy):
    """Runs a `LocalModule`'s training step on several devices of one process.

    The loss of each part is weighted by its share of the batch, so uneven parts are exact.
    BatchNorm sees the parts, as with torch's DataParallel; the first device's statistics count.
    """

    strategy_name = "dp"
    _model: nn.Module | None = None
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
        """Give the other devices the model's structure and its buffers."""
        super().setup(trainer)
        assert self.parallel_devices and isinstance(self.lightning_module, LocalModule)
        model = self.lightning_module.model
        if self._model is not model:
            # Once for all clients, who take turns in one model.
            self._model = model
            self._replicas = [deepcopy(model).to(device) for device in self.parallel_devices[1:]]
            self._pool = ThreadPoolExecutor(len(self.parallel_devices))
        for replica in self._replicas:
            for own, buffer in zip(replica.buffers(), model.buffers(), strict=True):
                own.copy_(buffer)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """One local step's objective, computed in parts; weighted sums of their results."""
        assert self.parallel_devices
        size, devices = len(batch.targets), self.parallel_devices
        parts = [(i, RankShare(i, len(devices)).slice(size)) for i in range(len(devices))]
        parts = [(i, part) for i, part in parts if part.stop > part.start]
        assert self._model is not None
        for replica in self._replicas:
            for own_layer, layer in zip(replica.modules(), self._model.modules(), strict=True):
                own_layer.training = layer.training  # frozen BatchNorm, say
        # A default dtype is the process's, so it is set around the threads; autocast is a
        # thread's own.
        with self.precision_plugin.train_step_context():
            futures = [self._pool.submit(self._part, i, batch, part) for i, part in parts]
            results = [future.result() for future in futures]
        total: dict[str, Tensor] = {}
        for (_, part), result in zip(parts, results, strict=True):
            share = (part.stop - part.start) / size
            for name, value in result.items():
                own = value.to(self.root_device) * share
                total[name] = total[name] + own if name in total else own
        return total

    def _part(self, index: int, batch: Batch, part: slice) -> dict[str, Tensor]:
        assert self.parallel_devices and isinstance(self.lightning_module, LocalModule)
        device, module = self.parallel_devices[index], self.lightning_module
        inputs, targets = (x[part].to(device) for x in (batch.inputs, batch.targets))
        own = batch._replace(inputs=inputs, targets=targets)
        mixed = isinstance(self.precision_plugin, MixedPrecision)
        with self.precision_plugin.train_step_context() if mixed else nullcontext():
            if index == 0:
                return module.training_step(own, 0)
            return module.replica_step(self._replicas[index - 1], own, device)

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
