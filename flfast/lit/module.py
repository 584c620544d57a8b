"""The LightningModule: `training_step` is one local step of one client."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.optim import Optimizer

from flfast.algorithms.algorithm import Algorithm, Context, LocalPhase
from flfast.datamodules.batches import Batch
from flfast.lit.batchnorm import batchnorm_layers, freeze
from flfast.lit.joint import JointLeaves
from flfast.lit.metrics import PredictionStore
from flfast.lit.sharding import add_gradients, shard, sharded_leaves
from flfast.lit.task import LocalTask, ShardedTask
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
        self._leaves: Tree = {}
        self.joint = self._joint_of({"params": {}, "buffers": {}})
        self._trainable = {name for name, p in self.params.items() if p.requires_grad}
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
        own, beside = divided(context.start, self.model)
        write_weights(self.model, own)
        self.joint = self._joint_of(beside)
        self.loss_sum = torch.zeros(())
        self.num_seen = self.num_examples = 0

    def begin_phase(self, phase: LocalPhase) -> None:
        """Take up a phase where the one before ended."""
        trained = self.trained(phase, self.joint.params)
        for name, p in self.all_params.items():
            p.requires_grad_(name in trained)
        self.num_examples = 0

    def end(self) -> None:
        """Leave the model as it was, but for its weights."""
        for name, p in self.params.items():
            p.requires_grad_(name in self._trainable)

    def trained(self, phase: LocalPhase, joint: Iterable[str]) -> list[str]:
        """Names of the parameters that a phase trains.

        Args:
            phase: of local training.
            joint: names of those beside the model's; frozen where they end with the name of one
                of the model's that is.
        """
        frozen = self.params.keys() - self._trainable
        names = [name for name in self.params if name not in frozen]
        names += [name for name in joint if name.rpartition("/")[2] not in frozen]
        return [name for name in names if phase.trains is None or name in phase.trains]

    @property
    def all_params(self) -> dict[str, nn.Parameter]:
        """Parameters by name, those beside the model's included."""
        return {**self.params, **self.joint.params}

    def _joint_of(self, leaves: Tree) -> JointLeaves:
        first = next(iter(self.params.values()))
        return JointLeaves(leaves, dtype=first.dtype, device=first.device)

    def configure_optimizers(self) -> Optimizer:
        """A fresh local optimizer, with the state it should start from."""
        trained = {name: p for name, p in self.all_params.items() if p.requires_grad}
        self.optimizer = self.make_optimizer(list(trained.values()), lr=self.context.lr)
        if self.optimizer_state:
            state_dict = self.optimizer.state_dict()
            # Copies: load_state_dict keeps the tensors it gets, and steps change them in place.
            copies = tree_map(
                torch.clone, place_tree(self.optimizer_state, self.params, self.device)
            )
            state = enumerate(copies.get(name, {}) for name in trained)
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
            # Made anew in every step: torch 2.8 and 2.9 move unevenly sharded parameters in the
            # first forward pass, and leaves from before would keep the old values.
            own = self._leaves = sharded_leaves(self.params)
            name = self.algorithm.name
            task = ShardedTask(self.model, own=own, mesh=self.mesh, share=batch.share, name=name)
            loss = self.algorithm.loss(task, own, batch, self.context)
            assert isinstance(loss, DTensor)
            full = loss.full_tensor()
            return {"loss": full * batch.scale, "mean": full.detach()}
        params = {**self.all_params, **self.joint.own_buffers}
        return self._objective(LocalTask(self.model, own=params), params, batch, self.context)

    def on_after_backward(self) -> None:
        """Where parameters are sharded, add the gradient of what the objective itself read."""
        if self.mesh is not None:
            add_gradients(self.params, self._leaves)

    def _objective(
        self, task: LocalTask, params: Tree, batch: Batch, ctx: Context
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
        params = {name: p.to(device) for name, p in self.all_params.items()}
        # The first device's count.
        params |= {n: b.to(device, copy=True) for n, b in self.joint.own_buffers.items()}
        if device not in self._contexts:  # once a client, not once a step
            self._contexts[device] = self._placed(self.context, device)
        return self._objective(LocalTask(model), params, batch, self._contexts[device])

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

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Correct the gradient of the local step where the algorithm does."""
        if self.algorithm.correct is None:
            return
        params = self.all_params
        grads = {name: p.grad for name, p in params.items() if p.grad is not None}
        for name, grad in self.algorithm.correct(grads, params, self.context).items():
            params[name].grad = grad

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
        names: dict[Tensor, str] = {p: name for name, p in self.all_params.items()}
        return {names[p]: _tensors(state) for p, state in self.optimizer.state.items()}


def divided(weights: Tree, model: nn.Module) -> tuple[Tree, Tree]:
    """Weights of the model, and the leaves that it does not have."""
    names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    kinds = ("params", "buffers")
    own = {kind: {n: w for n, w in weights[kind].items() if n in names} for kind in kinds}
    beside = {kind: {n: w for n, w in weights[kind].items() if n not in names} for kind in kinds}
    return own, beside


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
