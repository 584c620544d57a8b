"""Data parallelism in one process: each batch is split over the devices of the process.

Lightning 2 has no `dp` for its Trainer. Here every device has a replica of the model. Autograd
records the copy of the parameters to a replica, so their gradients return and are summed. On the
CPU the replicas are threads that share the parameters.
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

    The loss of a part is weighted by its share of the batch, so uneven parts give the exact mean.
    As with torch's DataParallel, BatchNorm normalises each part by itself, and the running
    statistics are those of the first device.
    """

    strategy_name = "dp"
    # A single rank, even if the process belongs to a world of several.
    world_size, global_rank, local_rank, is_global_zero = 1, 0, 0, True

    _model: nn.Module | None = None
    _replicas: Sequence[nn.Module] = ()
    _pool: ThreadPoolExecutor | None = None

    @property
    def root_device(self) -> torch.device:
        """The device of the parameters."""
        assert self.parallel_devices
        return self.parallel_devices[0]

    def model_to_device(self) -> None:
        """Move the parameters to the first device."""
        assert self.lightning_module is not None
        self.lightning_module.to(self.root_device)

    def teardown(self) -> None:
        """End the threads: no rank of a later run could be forked beside them."""
        if self._pool is not None:
            self._pool.shutdown()
        super().teardown()

    def setup(self, trainer: Any) -> None:
        """Start the threads, create the replicas once, and copy the current buffers to them."""
        super().setup(trainer)
        assert self.parallel_devices and isinstance(self.lightning_module, LocalModule)
        self._pool = ThreadPoolExecutor(len(self.parallel_devices))
        model = self.lightning_module.model
        if self._model is not model:
            self._model = model
            self._replicas = [deepcopy(model).to(device) for device in self.parallel_devices[1:]]
        for replica in self._replicas:
            for target, buffer in zip(replica.buffers(), model.buffers(), strict=True):
                target.copy_(buffer)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """The results of `LocalModule.training_step`, as weighted sums over the parts."""
        assert self.parallel_devices
        assert isinstance(self.lightning_module, LocalModule)
        size, devices = len(batch.targets), self.parallel_devices
        parts = [(i, RankShare(i, len(devices)).slice(size)) for i in range(len(devices))]
        parts = [(i, part) for i, part in parts if part.stop > part.start]
        assert self._model is not None and self._pool is not None
        for replica in self._replicas:
            for copy, layer in zip(replica.modules(), self._model.modules(), strict=True):
                copy.training = layer.training  # of frozen BatchNorm, for example
        # The default dtype is global, so it is set here; autocast is per thread, so it is entered
        # in every thread.
        with self.precision_plugin.train_step_context():
            weights = self.lightning_module.task_type.weights(batch.targets)
            futures = [self._pool.submit(self._part, i, batch, part) for i, part in parts]
            results = [future.result() for future in futures]
        total: dict[str, Tensor] = {}
        for (_, part), result in zip(parts, results, strict=True):
            share = (part.stop - part.start) / size if weights is None else weights[part].sum()
            for name, value in result.items():
                weighted = value.to(self.root_device) * share
                total[name] = total[name] + weighted if name in total else weighted
        return total

    def _part(self, index: int, batch: Batch, part: slice) -> dict[str, Tensor]:
        assert self.parallel_devices and isinstance(self.lightning_module, LocalModule)
        device, module = self.parallel_devices[index], self.lightning_module
        inputs, targets = (x[part].to(device) for x in (batch.inputs, batch.targets))
        batch = batch._replace(inputs=inputs, targets=targets)
        mixed = isinstance(self.precision_plugin, MixedPrecision)
        with self.precision_plugin.train_step_context() if mixed else nullcontext():
            if index == 0:
                return module.training_step(batch, 0)
            return module.replica_step(self._replicas[index - 1], batch, device)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Identity: there is a single rank."""
        return tensor

    def all_gather(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Identity: there is a single rank."""
        return tensor

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Return at once: there is a single rank."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Identity: there is a single rank."""
        return obj


StrategyRegistry.register("dp", DataParallelStrategy, description="devices of one process")
