"""Changes to a run that a GPU may gain from, each to be measured before it is built.

A job applies them in its own process; see `patching.put`. One that is built goes from here.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor

from benchmarks.gpu.patching import put
from flfast.engines.fused.graph import vmapped
from flfast.engines.fused.graph.cuda_graphs import CudaGraphs
from flfast.lit import trainers
from flfast.lit.trainers import ReusedTrainer
from flfast.output.callbacks.monitor import Monitor

_aten = torch.ops.aten


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


def batched_products() -> None:  # noqa: C901 - two operators and what they share
    """Stacked convolutions are one batched product of unfolded images, not groups."""

    def plain(stride: Any, dilation: Any, groups: int, *, transposed: bool) -> bool:
        return [*stride, *dilation] == [1] * 4 and not transposed and groups == 1

    def product(x: Tensor, w: Tensor, padding: Any) -> tuple[Tensor, Tensor]:
        columns = unfolded(x, (w.shape[2], w.shape[3]), padding)
        batch, height, width, num = columns.shape[0], *columns.shape[1:3], columns[0, 0, 0].numel()
        flat = columns.reshape(batch * height * width, num)
        out = flat.mm(w.reshape(w.shape[0], -1).t())
        return out.view(batch, height, width, w.shape[0]).permute(0, 3, 1, 2), flat

    def convolution(x: Any, w: Any, bias: Any, stride: Any, padding: Any, *rest: Any) -> Any:
        dilation, transposed, _, groups = rest
        if w.ndim != 4 or not plain(stride, dilation, groups, transposed=transposed):
            return _aten.convolution.default(x, w, bias, stride, padding, *rest)
        out, _ = product(x, w, padding)
        return out if bias is None else out + bias.view(1, -1, 1, 1)

    def backward(
        grad: Any, x: Any, w: Any, sizes: Any, stride: Any, padding: Any, *rest: Any
    ) -> Any:
        dilation, transposed, _, groups, mask = rest
        if w.ndim != 4 or not plain(stride, dilation, groups, transposed=transposed):
            return _aten.convolution_backward.default(grad, x, w, sizes, stride, padding, *rest)
        of_x = of_w = of_bias = None
        flat = grad.permute(0, 2, 3, 1).reshape(-1, w.shape[0])
        if mask[0]:
            height, width = w.shape[2:]
            turned = w.flip(2, 3).transpose(0, 1)
            of_x, _ = product(grad, turned, [height - 1 - padding[0], width - 1 - padding[1]])
        if mask[1]:
            _, columns = product(x, w, padding)
            of_w = flat.t().mm(columns).view(w.shape)
        if mask[2]:
            of_bias = flat.sum(0)
        # A step's graph takes the results that it reads; others must be tensors under vmap.
        empty = grad.new_zeros(())
        return tuple(empty if part is None else part for part in (of_x, of_w, of_bias))

    put(vmapped, "_REPLACEMENTS", vmapped._REPLACEMENTS)  # noqa: SLF001 - must be there
    vmapped._REPLACEMENTS[_aten.convolution.default] = convolution  # noqa: SLF001
    vmapped._REPLACEMENTS[_aten.convolution_backward.default] = backward  # noqa: SLF001


def unfolded(x: Tensor, window: tuple[int, int], padding: Any) -> Tensor:
    """The windows of images [..., C, H, W], as [..., H', W', C, *window]."""
    if any(padding):
        x = torch.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]])
    x = x.unfold(-2, window[0], 1).unfold(-2, window[1], 1)  # [..., C, H', W', *window]
    last = x.ndim
    order = [*range(last - 5), last - 4, last - 3, last - 5, last - 2, last - 1]
    return x.permute(order)


ALL = (steps_only, batched_products, tf32_products, no_monitor)
