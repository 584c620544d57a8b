"""Implementations of `flfast.algorithms.contract.client.Task`: the model and its loss."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from flfast.datamodules.batches import Batch
from flfast.distributed.sharding import mean_over_ranks
from flfast.state.tree import Tree
from flfast.state.weights import layer_inputs, using_weights
from flfast.tasks.classification import CLASSIFICATION
from flfast.tasks.factored_logits import FactoredLogits, large_factored
from flfast.tasks.task_type import TaskType


class LocalTask:
    """The task of a model in local training.

    Args:
        model: inputs [B, ...] -> outputs.
        task_type: gives the loss.
        buffers: buffers to use instead of the model's, by name.
        model_params: the dict with the model's own parameters. With this very dict the model is
            called directly, with any other by `called_with`.
        example_weights: weights of a batch's examples, [B], with sum 1; None weighs them equally.

    Attributes:
        logged: what the first call logged by name, each []; a user's module alone logs.
    """

    def __init__(
        self,
        model: nn.Module,
        task_type: TaskType = CLASSIFICATION,
        *,
        buffers: Mapping[str, Tensor] | None = None,
        model_params: Tree | None = None,
        example_weights: Tensor | None = None,
    ) -> None:
        self._model, self._task_type, self._model_params = model, task_type, model_params
        self._buffers, self._example_weights = buffers or {}, example_weights
        self.logged: dict[str, Tensor] = {}

    def __call__(self, params: Tree, batch: Batch) -> Tensor:
        """Mean loss []; see `Task`."""
        return self._loss(self._outputs(params, batch), batch)

    def mean(self, values: Tensor) -> Tensor:
        """Mean [] over examples; see `Task`."""
        # `example_weights` are of the whole batch; parts of a batch are never padded.
        weights = self._example_weights
        if weights is None or len(values) != len(weights):
            return values.mean()
        return (values * weights).sum()

    def losses(self, weights: Tree, batch: Batch) -> Tensor:
        """Loss of each example; see `Task`."""
        return self._task_type.losses(self._outputs(weights, batch), batch.targets)

    def logits(self, weights: Tree, batch: Batch) -> Tensor:
        """Outputs of the model; see `Task`."""
        outputs: Tensor = self._call(weights, batch.inputs)
        return outputs

    def fixed_logits(self, weights: Tree, batch: Batch) -> Tensor:
        """Outputs of the model in evaluation mode; see `Task`."""
        with torch.no_grad(), evaluation_mode(self._model):
            return self.logits(weights, batch).detach()

    def features(self, weights: Tree, batch: Batch, *, layer: str) -> tuple[Tensor, Tensor]:
        """Inputs of a layer, and the loss; see `Task`."""
        with layer_inputs(self._model, layer) as captured:
            loss = self._loss(self.logits(weights, batch), batch)
        return captured[0], loss

    def fixed_features(self, weights: Tree, batch: Batch, *, layer: str) -> Tensor:
        """Inputs of a layer in evaluation mode; see `Task`."""
        with torch.no_grad(), evaluation_mode(self._model):
            return self.features(weights, batch, layer=layer)[0].detach()

    def _outputs(self, params: Tree, batch: Batch) -> Tensor | FactoredLogits:
        """The model's outputs as the loss reads them, with large logits as `FactoredLogits`."""
        if not self._task_type.reads_factors:
            return self.logits(params, batch)
        return large_factored(self._model, partial(self._call, params), batch.inputs)

    def _call(self, params: Tree, inputs: Tensor, **options: bool) -> Any:
        with self._using(params):
            return self._model(inputs, **options)

    def _using(self, weights: Tree) -> AbstractContextManager[None]:
        """The model has these weights within the context, in its data types."""
        if weights is self._model_params:
            return nullcontext()
        # Weights of the context have the dtype of the broadcast, not of the Trainer's precision.
        given = {
            name: weights[name].to(like.dtype)
            for name, like in (*self._model.named_parameters(), *self._model.named_buffers())
            if name in weights
        }
        return using_weights(self._model, {**self._buffers, **given})

    def _loss(self, logits: Tensor | FactoredLogits, batch: Batch) -> Tensor:
        weights = self._example_weights
        if weights is None or len(weights) != len(batch.targets):
            weights = self._task_type.weights(batch.targets)
        if weights is None:
            return self._task_type.loss(logits, batch.targets)
        return (self._task_type.losses(logits, batch.targets) * weights).sum()


class ShardedTask(LocalTask):
    """The task of a model that is sharded over ranks; every rank has its shard of the batch.

    `model_params` are the model's own, or their `sharded_leaves`; messages name the algorithm.
    """

    def __init__(
        self,
        model: nn.Module,
        task_type: TaskType,
        batch: Batch,
        *,
        model_params: Tree,
        mesh: DeviceMesh,
        name: str,
    ) -> None:
        weights = task_type.weights(batch.targets)
        super().__init__(model, task_type, model_params=model_params, example_weights=weights)
        self._mesh, self._rank_factor, self._name = mesh, batch.rank_factor, name

    def mean(self, values: Tensor) -> Tensor:
        """Mean [] over examples, all-reduced; see `Task`."""
        return mean_over_ranks(super().mean(values) * self._rank_factor, self._mesh)

    def _outputs(self, params: Tree, batch: Batch) -> Tensor:
        # Outside of its forward pass, a sharded model does not hold the last layer's weights.
        return self.logits(params, batch)

    def logits(self, weights: Tree, batch: Batch) -> Tensor:
        """Outputs of the model with its own parameters; see `Task`."""
        if weights is not self._model_params:
            raise MisconfigurationException(
                f"algorithm={self._name} computes its loss with parameters that are not the "
                f"model's own, which strategy=fsdp cannot; use strategy=ddp"
            )
        return super().logits(weights, batch)

    def _loss(self, logits: Tensor | FactoredLogits, batch: Batch) -> Tensor:
        return mean_over_ranks(super()._loss(logits, batch) * self._rank_factor, self._mesh)


def surrogate(value: Tensor, grads: Tree, params: Tree) -> Tensor:
    """An objective with a given value and a given gradient.

    The value is [], and parameters without a gradient in `grads` get none.

    >>> import torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> loss = surrogate(torch.tensor(5.0), {"w": torch.tensor([2.0, 3.0])}, {"w": w})
    >>> loss.item(), *torch.autograd.grad(loss, w)
    (5.0, tensor([2., 3.]))
    """
    terms = [(grad.detach() * (params[n] - params[n].detach())).sum() for n, grad in grads.items()]
    return value.detach() + cast(Tensor, sum(terms))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and back what was in training mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
