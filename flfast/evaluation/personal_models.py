"""Predictions of many clients' own models: one after another, or stacked."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from flfast.datamodules.batches import Batch
from flfast.state.tree import Tree
from flfast.state.weights import buffers, write_weights

STACKED_BYTES, STACKED_EXAMPLES = 1 << 16, 32
"""Of a model's weights and of a client, up to which a CPU predicts faster stacked: 1.2 to 2.8
times, measured with 5 and 20 examples; equal with 100. Larger models leave its cache."""


class OwnModels:
    """The model with each client's weights in turn, or with all of them at once.

    Args:
        model: its own weights are overwritten.
        weights: by client.
        stack: predict with all weights at once, where the model can be mapped over them.
    """

    def __init__(self, model: nn.Module, weights: Mapping[int, Tree], *, stack: bool) -> None:
        self._model, self._weights, self._stack = model, weights, stack
        self._written = -1

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Logits [B, C] of a batch with `owners`."""
        few = batch.inputs.is_cuda or max(n for _, n in batch.owners) <= STACKED_EXAMPLES
        if self._stack and len(batch.owners) > 1 and few:
            try:
                return self._stacked(batch)
            except (RuntimeError, ValueError, NotImplementedError):
                self._stack = False  # the model does what vmap has no rule for
        sizes = [num for _, num in batch.owners]
        parts = zip(batch.owners, batch.inputs.split(sizes), strict=True)
        return torch.cat([self._one(client_id, inputs) for (client_id, _), inputs in parts])

    def _one(self, client_id: int, inputs: Tensor) -> Tensor:
        if client_id != self._written:
            write_weights(self._model, self._weights[client_id])
            self._written = client_id
        logits: Tensor = self._model(inputs)
        return logits

    def _stacked(self, batch: Batch) -> Tensor:
        """The same with examples padded to [K, most of a client, ...]."""
        inputs, sizes = batch.inputs, [num for _, num in batch.owners]
        most = max(sizes)
        places = torch.cat([torch.arange(num) + k * most for k, num in enumerate(sizes)])
        places = places.to(inputs.device)
        padded = inputs
        if min(sizes) < most:
            padded = inputs.new_zeros(len(sizes) * most, *inputs.shape[1:])
            padded.index_copy_(0, places, inputs)
        trees = [self._weights[client_id] for client_id, _ in batch.owners]
        own = {**dict(self._model.named_parameters()), **buffers(self._model)}
        stacked = {
            name: torch.stack([tree[kind][name] for tree in trees]).to(own[name])
            for kind in ("params", "buffers")
            for name in trees[0][kind]
        }
        padded = padded.view(len(sizes), most, *inputs.shape[1:])
        logits: Tensor = vmap(lambda leaves, x: functional_call(self._model, leaves, (x,)))(
            stacked, padded
        )
        return logits.flatten(0, 1).index_select(0, places)


def worth_stacking(model: nn.Module) -> bool:
    """Whether predictions of several clients are faster stacked: on a GPU, or if it is tiny."""
    weights = [*model.parameters(), *buffers(model).values()]
    on_gpu = any(leaf.is_cuda for leaf in weights)
    return on_gpu or sum(leaf.nbytes for leaf in weights) <= STACKED_BYTES
