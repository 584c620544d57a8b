"""Fully sharded data parallelism (FSDP2): ranks shard parameters, gradients, optimizer states.

Lightning's `FSDPStrategy` is FSDP1, which refuses CPUs. It would also shard in every fit; here the
module is sharded once, and clients take turns in it.
"""

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from flfast.lit.local_module import LocalModule


class FullyShardedStrategy(ParallelStrategy):
    """Runs a sharded `LocalModule` on every rank of a world that is already initialised."""

    is_distributed = True  # Lightning sets this for its own strategies only

    def __init__(self, group_params: int) -> None:
        super().__init__()
        self.group_params = group_params

    @property
    def root_device(self) -> torch.device:
        """This rank's device."""
        assert self.parallel_devices
        return self.parallel_devices[self.local_rank]

    def shard(self, module: LocalModule) -> LocalModule:
        """A copy of the module, sharded over all ranks; collective."""
        self.setup_environment()
        mesh = init_device_mesh(self.root_device.type, (dist.get_world_size(),))
        return module.sharded(mesh, group_params=self.group_params)

    def model_to_device(self) -> None:
        """Nothing to do: `shard` has placed the module."""

    def setup(self, trainer: Any) -> None:
        """Set up optimizers and precision; the module is already placed and converted."""
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def teardown(self) -> None:
        """Clean up, but leave the parameters on their device for the next client."""
        assert self.accelerator is not None
        self.precision_plugin.teardown()
        self.accelerator.teardown()

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """All-reduce, by default to the mean."""
        if not isinstance(tensor, Tensor):
            return tensor
        mean = reduce_op in {None, "mean", "avg"}
        op = "sum" if mean else reduce_op
        total = tensor.clone()
        dist.all_reduce(total, getattr(dist.ReduceOp, op.upper()) if isinstance(op, str) else op)
        return total / dist.get_world_size() if mean else total

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of rank `src`, on every rank."""
        objects = [obj]
        dist.broadcast_object_list(objects, src)
        return objects[0]
