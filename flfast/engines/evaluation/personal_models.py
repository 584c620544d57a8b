"""Predictions of many clients' personal models: one after another, or under vmap."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import vmap

from flfast.algorithms.contract import Task
from flfast.datamodules.batches import Batch
from flfast.lit.task import LocalTask
from flfast.state.precision import placed
from flfast.state.tree import Tree, tree_map
from flfast.state.vmap_fallback import no_vmap_fallback
from flfast.state.weights import buffers, by_name, called_with, write_weights
from flfast.tasks.task_type import TaskType

VMAPPED_BYTES, VMAPPED_EXAMPLES = 1 << 16, 32
"""Largest model, and most examples of a client, that a CPU predicts faster under vmap.

With 5 and 20 examples per client vmap is 1.2 to 2.8 times as fast, with 100 equally fast. The
stacked weights of larger models do not fit in the cache.
"""


class PersonalModels:
    """Predicts with the weights of one client after another, or of all clients under vmap.

    The model's weights are overwritten. `vmapped`: small batches use vmap, if the model allows it.
    `predict` replaces the model's forward, and gets a task with the loss of `task_type`; see
    `Algorithm.predict`.
    """

    def __init__(
        self,
        model: nn.Module,
        task_type: TaskType,
        weights: Mapping[int, Tree],
        *,
        vmapped: bool,
        predict: Callable[[Task, Tree, Batch], Tensor] | None = None,
    ) -> None:
        self._model, self._task_type = model, task_type
        self._weights, self._predict_with = weights, predict
        self._vmapped = vmapped and predict is None
        self._loaded_client, self._loaded = -1, Tree()

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Outputs [B, ...] of a batch with `owners`."""
        small = batch.inputs.is_cuda or max(n for _, n in batch.owners) <= VMAPPED_EXAMPLES
        if self._vmapped and len(batch.owners) > 1 and small:
            try:
                with no_vmap_fallback():
                    return self._predict_vmapped(batch)
            except (RuntimeError, ValueError, NotImplementedError):
                self._vmapped = False  # vmap does not support an operation of the model
        sizes = [num for _, num in batch.owners]
        parts = zip(batch.inputs.split(sizes), batch.targets.split(sizes), strict=True)
        return torch.cat(
            [
                self._predict(client_id, Batch(inputs, targets))
                for (client_id, _), (inputs, targets) in zip(batch.owners, parts, strict=True)
            ]
        )

    def _predict(self, client_id: int, batch: Batch) -> Tensor:
        if client_id != self._loaded_client:
            self._loaded_client, weights = client_id, self._weights[client_id]
            if self._predict_with is None:
                write_weights(self._model, weights)
            else:
                device = batch.inputs.device
                self._loaded = by_name(tree_map(lambda x: placed(x, device), weights))
        if self._predict_with is not None:
            return self._predict_with(LocalTask(self._model, self._task_type), self._loaded, batch)
        logits: Tensor = self._model(batch.inputs)
        return logits

    def _predict_vmapped(self, batch: Batch) -> Tensor:
        """Outputs [B, ...], from inputs padded to [K, examples of the largest client, ...]."""
        inputs, sizes = batch.inputs, [num for _, num in batch.owners]
        largest = max(sizes)
        rows = torch.cat([torch.arange(num) + k * largest for k, num in enumerate(sizes)])
        rows = rows.to(inputs.device)
        padded = inputs
        if min(sizes) < largest:
            padded = inputs.new_zeros(len(sizes) * largest, *inputs.shape[1:])
            padded.index_copy_(0, rows, inputs)
        clients = [by_name(self._weights[client_id]) for client_id, _ in batch.owners]
        like = {**dict(self._model.named_parameters()), **buffers(self._model)}
        weights = {
            name: torch.stack([leaves[name] for leaves in clients]).to(like[name])
            for name in clients[0]
        }
        padded = padded.view(len(sizes), largest, *inputs.shape[1:])
        logits: Tensor = vmap(lambda leaves, x: called_with(self._model, leaves, x))(
            weights, padded
        )
        return logits.flatten(0, 1).index_select(0, rows)


def faster_vmapped(model: nn.Module) -> bool:
    """Whether vmap speeds up personal models: on GPUs, and if the model is tiny."""
    weights = [*model.parameters(), *buffers(model).values()]
    on_gpu = any(leaf.is_cuda for leaf in weights)
    return on_gpu or sum(leaf.nbytes for leaf in weights) <= VMAPPED_BYTES
