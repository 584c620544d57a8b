"""Changes to a run that a GPU may gain from, each to be measured before it is built.

A job applies them in its own process; see `patching.put`. One that is built goes from here.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy

from benchmarks.gpu.patching import put
from flfast.engines.fused.graph.cuda_graphs import CudaGraphs
from flfast.lit import trainers
from flfast.lit.trainers import ReusedTrainer
from flfast.output.callbacks.monitor import Monitor


def keep_workspaces() -> None:
    """Lightning frees cuBLAS's workspaces after each fit; recordings point to them."""
    put(CUDAAccelerator, "teardown", lambda self: None)


def pooled_workspaces() -> None:
    """Another cure: workspaces are allocated in the recordings' own pool."""
    record = CudaGraphs.record

    def cleared(self: CudaGraphs, run: Any) -> Any:
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - torch has no public name for it
        return record(self, run)

    put(CudaGraphs, "record", cleared)


def steps_only() -> None:
    """Lightning's loops run once, as on a CPU, and then their steps; the model stays there."""
    keep_workspaces()
    put(SingleDeviceStrategy, "teardown", lambda self: None)

    def unwatched(self: ReusedTrainer) -> bool:
        hooks = (trainers.overridden_hooks(callback) for callback in self.trainer.callbacks)
        watching = (found - {"on_exception"} for found in hooks)
        single = type(self.trainer.strategy) is SingleDeviceStrategy
        return single and type(self.trainer.profiler) is PassThroughProfiler and not any(watching)

    def test(self: ReusedTrainer, module: Any, data: Any) -> None:
        if "test" not in self._ran or not self._steps_only:
            self._ran.add("test")
            self.trainer.test(module, datamodule=data, verbose=False)
            return
        data.trainer = self.trainer
        strategy, precision = self.trainer.strategy, self.trainer.precision_plugin
        strategy.connect(module)
        module.to(strategy.root_device)
        context = precision.test_step_context()
        with self._steps(module), torch.no_grad(), trainers.evaluation_mode(module), context:
            module.on_test_start()
            for index, batch in enumerate(map(precision.convert_input, data.test_dataloader())):
                placed = strategy.batch_to_device(batch)
                module.test_step(data.on_after_batch_transfer(placed, 0), index)

    put(ReusedTrainer, "_steps_only", property(unwatched))
    put(ReusedTrainer, "test", test)


def no_recordings() -> None:
    """Every step is launched operator by operator."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA graphs are switched off")

    put(torch.cuda, "graph", refuse)


def tf32_products() -> None:
    """Products of matrices, too, have the shorter mantissa that convolutions have by default."""
    torch.set_float32_matmul_precision("high")


def no_tf32() -> None:
    """Convolutions have float32's own mantissa."""
    torch.backends.cudnn.allow_tf32 = False


def no_monitor() -> None:
    """The driver is not asked after every client."""
    put(Monitor, "on_client_end", lambda *_: None)


ALL = (steps_only, tf32_products, no_monitor)
