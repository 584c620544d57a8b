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
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from torch import Tensor, nn

from flfast.datamodules.batches import Batch, RankShare
from flfast.lit.local_module import LocalModule


class DataParallelStrategy(SingleDeviceStrategy):
    """Runs a `LocalModule`'s training step on several devices of one process.

    The loss of a part is weighted by its share of the batch, so uneven parts give the exact mean.
    As with torch's DataParallel, BatchNorm normalises each part by itself, and the running
    statistics are those of the first device. There is a single rank, even in a process of a world
    of several.

    Attributes:
        parallel_devices: the devices, which Lightning sets.
    """

    strategy_name = "dp"
    parallel_devices: Sequence[torch.device] = ()
    _model: nn.Module | None = None
    _replicas: Sequence[nn.Module] = ()
    _pool: ThreadPoolExecutor | None = None

    @property
    def root_device(self) -> torch.device:
        """The device of the parameters."""
        return self.parallel_devices[0]

    def teardown(self) -> None:
        """End the threads: no rank of a later run could be forked beside them.

        The parameters stay on their device for the next client.
        """
        if self._pool is not None:
            self._pool.shutdown()

    def setup(self, trainer: Any) -> None:
        """Start the threads, create the replicas once, and copy the current buffers to them."""
        super().setup(trainer)
        assert isinstance(self.lightning_module, LocalModule)
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
        assert isinstance(self.lightning_module, LocalModule)
        device, module = self.parallel_devices[index], self.lightning_module
        inputs, targets = (x[part].to(device) for x in (batch.inputs, batch.targets))
        batch = batch._replace(inputs=inputs, targets=targets)
        mixed = isinstance(self.precision_plugin, MixedPrecision)
        with self.precision_plugin.train_step_context() if mixed else nullcontext():
            if index == 0:
                return module.training_step(batch, 0)
            return module.replica_step(self._replicas[index - 1], batch, device)


StrategyRegistry.register("dp", DataParallelStrategy, description="devices of one process")
