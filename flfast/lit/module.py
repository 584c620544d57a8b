"""The LightningModule: `training_step` is one local step of one client."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import Optimizer

from flfast.algorithms.algorithm import Algorithm, Context, Task
from flfast.datamodules.batches import Batch
from flfast.lit.batchnorm import batchnorm_layers, freeze
from flfast.lit.metrics import PredictionStore
from flfast.lit.sharding import add_gradients, mean_over_ranks, shard, sharded_leaves
from flfast.state.sharding import place_tree, whole
from flfast.state.tree import Tree, tree_map
from flfast.state.weights import write_weights

MakeOptimizer = Callable[..., Optimizer]


class LocalModule(L.LightningModule):
    """A model in local training: automatic optimization, so that every Trainer option works.

    Args:
        model: [B, ...] -> logits [B, C].
        algorithm: gives objective and gradient correction.
        make_optimizer: (parameters, lr=...) -> any torch optimizer.
        freeze_batchnorm: keep BatchNorm fixed during local training.
    """

    context: Context

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        make_optimizer: MakeOptimizer,
        *,
        freeze_batchnorm: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.algorithm = algorithm
        self.make_optimizer = make_optimizer
        self.freeze_batchnorm = freeze_batchnorm
        if freeze_batchnorm:
            for _, layer in batchnorm_layers(model):
                layer.requires_grad_(requires_grad=False)
        self.mesh: DeviceMesh | None = None
        self.params = dict(model.named_parameters())
        self.leaves: Tree = self.params
        self.optimizer_state: Tree = {}
        self.predictions = PredictionStore()
        self.own: Callable[[Batch], Tensor] | None = None

    def sharded(self, mesh: DeviceMesh, *, group_params: int) -> "LocalModule":
        """A copy with this rank's part of every parameter, on the mesh's device; see `shard`."""
        # FSDP cuts contiguous tensors only.
        model = deepcopy(self.model).to(memory_format=torch.contiguous_format)
        shard(model, mesh, group_params=group_params)
        copy = LocalModule(
            model, self.algorithm, self.make_optimizer, freeze_batchnorm=self.freeze_batchnorm
        )
        copy.to(next(model.parameters()).device, next(model.parameters()).dtype)
        copy.mesh = mesh
        copy.leaves = sharded_leaves(copy.params)
        return copy

    def begin(self, context: Context, optimizer_state: Tree) -> None:
        """Take up local training at `context.start`.

        Args:
            context: what this client may read.
            optimizer_state: by parameter name; empty for a fresh optimizer.
        """
        self.context = context
        self._contexts: dict[torch.device, Context] = {}
        self.optimizer_state = optimizer_state
        write_weights(self.model, context.start)
        self.num_examples = 0
        self.loss_sum = torch.zeros(())
        self.num_seen = 0

    def configure_optimizers(self) -> Optimizer:
        """A fresh local optimizer, with the state it should start from."""
        trained = [p for p in self.params.values() if p.requires_grad]
        self.optimizer = self.make_optimizer(trained, lr=self.context.lr)
        if self.optimizer_state:
            state_dict = self.optimizer.state_dict()
            names = [name for name, p in self.params.items() if p.requires_grad]
            # Copies: load_state_dict keeps the tensors it gets, and steps change them in place.
            copies = tree_map(
                torch.clone, place_tree(self.optimizer_state, self.params, self.device)
            )
            state = enumerate(copies.get(name, {}) for name in names)
            self.optimizer.load_state_dict({**state_dict, "state": dict(state)})
        return self.optimizer

    def on_train_start(self) -> None:
        """Take the context to the model's device, and hold BatchNorm fixed if asked to."""
        self.context = self._placed(self.context, self.device)
        if self.freeze_batchnorm:
            freeze(self.model, frozen=True)

    def _placed(self, context: Context, device: torch.device) -> Context:
        server, client, start = (
            place_tree(tree, self.params, device)
            for tree in (context.server, context.client, context.start)
        )
        return Context(server, client, start, context.lr)

    def on_train_end(self) -> None:
        """Let go of it: Lightning warns of layers that enter training in eval mode."""
        if self.freeze_batchnorm:
            freeze(self.model, frozen=False)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Local objective of one batch: `loss` [] for the gradient, `mean` [] to report."""
        if self.mesh is not None:
            loss = self.algorithm.loss(self._shared_loss, self.leaves, batch, self.context)
            assert isinstance(loss, DTensor)
            full = loss.full_tensor()
            return {"loss": full * batch.scale, "mean": full.detach()}
        return self._objective(self.task_loss, self.params, batch, self.context)

    def _shared_loss(self, params: Tree, batch: Batch) -> Tensor:
        assert self.mesh is not None
        return mean_over_ranks(self.task_loss(params, batch) * batch.share, self.mesh)

    def on_after_backward(self) -> None:
        """Where parameters are sharded, add the gradient of what the objective itself read."""
        if self.mesh is not None:
            add_gradients(self.params, self.leaves)

    def _objective(
        self, task: Task, params: Tree, batch: Batch, ctx: Context
    ) -> dict[str, Tensor]:
        loss = self.algorithm.loss(task, params, batch, ctx)
        return {"loss": loss * (batch.scale * batch.share), "mean": loss.detach()}

    def replica_step(
        self, model: nn.Module, batch: Batch, device: torch.device
    ) -> dict[str, Tensor]:
        """The same on another device, with a copy of the model's structure.

        Args:
            model: the copy; its buffers are used, its parameters are not.
            batch: on that device.
            device: where; parameters are copied there inside of autograd.
        """
        params = {name: p.to(device) for name, p in self.params.items()}
        if device not in self._contexts:  # once a client, not once a step
            self._contexts[device] = self._placed(self.context, device)

        def task(params: Tree, batch: Batch) -> Tensor:
            return F.cross_entropy(functional_call(model, params, (batch.inputs,)), batch.targets)

        return self._objective(task, params, batch, self._contexts[device])

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Count what was seen; a rank's stand-in for an empty part counts nothing."""
        num = len(batch.targets) if batch.share else 0
        self.loss_sum = self.loss_sum.to(outputs["mean"].device) + outputs["mean"] * num
        self.num_seen += num
        if self.trainer.current_epoch == 0:
            self.num_examples += num

    def add_ranks(self, total: Callable[[list[float]], list[float]]) -> None:
        """Count what all ranks saw of a client they trained together."""
        found = total([float(self.loss_sum), self.num_seen, self.num_examples])
        self.loss_sum = torch.tensor(found[0])
        self.num_seen, self.num_examples = round(found[1]), round(found[2])

    def task_loss(self, params: Tree, batch: Batch) -> Tensor:
        """Mean cross-entropy [] of the model with the given parameters.

        Raises:
            MisconfigurationException: if those are not the model's own, which is sharded.
        """
        if params is self.leaves:
            logits = self.model(batch.inputs)
        elif self.mesh is not None:
            raise MisconfigurationException(
                f"algorithm={self.algorithm.name} computes its loss with parameters that are not "
                f"the model's own, which strategy=fsdp cannot; use strategy=ddp"
            )
        else:
            logits = functional_call(self.model, params, (batch.inputs,))
        return F.cross_entropy(logits, batch.targets)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Correct the gradient of the local step where the algorithm does."""
        if self.algorithm.correct is None:
            return
        grads = {name: p.grad for name, p in self.params.items() if p.grad is not None}
        corrected = self.algorithm.correct(grads, self.params, self.context)
        for name, grad in corrected.items():
            self.params[name].grad = grad

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log `val/loss` within local training, for callbacks such as EarlyStopping."""
        loss = F.cross_entropy(self.model(batch.inputs), batch.targets)
        # Ranks that train together stop together, though each has BatchNorm statistics of its own.
        self.log("val/loss", loss, batch_size=len(batch.targets), sync_dist=True)

    def on_test_start(self) -> None:
        """Forget the last evaluation; clients' own models are evaluated in several parts."""
        if self.own is None:
            self.predictions.reset()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Predict one batch with the server's model, or with its clients' own."""
        logits = self.model(batch.inputs) if self.own is None else self.own(batch)
        if batch.share:
            self.predictions.update(logits, batch.targets)

    def read_optimizer_state(self) -> Tree:
        """State of the local optimizer by parameter name.

        Raises:
            ValueError: if the optimizer keeps something that is not a tensor.
        """
        names: dict[Tensor, str] = {p: name for name, p in self.params.items()}
        return {names[p]: _tensors(state) for p, state in self.optimizer.state.items()}


def check_optimizer_state(make_optimizer: MakeOptimizer, *, lr: float) -> None:
    """Take one step on a parameter of its own, to see what the optimizer keeps.

    Raises:
        ValueError: if that is not tensors alone, which cannot be averaged or sent.
    """
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = make_optimizer([parameter], lr=lr)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = parameter.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    _tensors(optimizer.state[parameter])


def _tensors(state: dict[str, object]) -> Tree:
    tensors = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            tensors[name] = whole(value)
        elif value is not None:
            raise ValueError(
                f"local_optimizer_state=keep and average need an optimizer whose state is "
                f"tensors; {name} is a {type(value).__name__}; use local_optimizer_state=reset"
            )
    return tensors
