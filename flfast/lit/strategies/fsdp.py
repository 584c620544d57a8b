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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from flfast.datamodules.batches import Batch
from flfast.distributed.sharding import add_gradients, shard, sharded_leaves
from flfast.lit.local_module import LocalModule
from flfast.lit.task import ShardedTask
from flfast.models.adapters.frozen_base import copy_to_shard
from flfast.state.tree import Tree


class ShardedModule(LocalModule):
    """A copy of a module with sharded parameters on the mesh's device; see `shard`."""

    def __init__(self, module: LocalModule, mesh: DeviceMesh, *, group_params: int) -> None:
        # FSDP shards contiguous tensors only.
        model = copy_to_shard(module.model).to(memory_format=torch.contiguous_format)
        shard(model, mesh, group_params=group_params)
        kind: Any = {"freeze_batchnorm": module.freeze_batchnorm, "habits": module.habits}
        super().__init__(model, module.algorithm, module.make_optimizer, module.task_type, **kind)
        self.params = {name: self.params[name] for name in module.params}  # no frozen base
        self.to(next(model.parameters()).device, next(model.parameters()).dtype)
        self._mesh = mesh
        self._objective_params: Tree = {}

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """See `LocalModule`."""
        # Made anew in every step: torch 2.8 and 2.9 move unevenly sharded parameters in the
        # first forward pass, and older leaves would keep the old values.
        params = self._objective_params = sharded_leaves(self.params)
        options: Any = {"model_params": params, "mesh": self._mesh, "name": self.algorithm.name}
        task = ShardedTask(self.model, self.task_type, batch, **options)
        loss = self._loss(task, params, batch, self.context)
        assert isinstance(loss, DTensor)
        full = loss.full_tensor()
        return {"loss": full * batch.scale, "mean": full.detach()}

    def on_after_backward(self) -> None:
        """Add the gradients of parameters that the objective read directly."""
        add_gradients(self.params, self._objective_params)


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
        return ShardedModule(module, mesh, group_params=self.group_params)

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
