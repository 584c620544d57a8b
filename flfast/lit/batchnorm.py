"""BatchNorm layers, found by type at any depth, and the policies for them.

- `aggregate`: statistics and affine parameters are averaged like all other weights.
- `local`: they stay on the client (FedBN).
- `frozen`: they are neither trained nor updated.
- `recalibrate`: they are averaged; then the statistics of the new server model are measured on the
  cohort's training data. The cohort receives the new model for this, and sends statistics back.
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfast.state.tree import Tree, num_bytes
from flfast.state.weights import model_weights, select_weights


def batchnorm_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(qualified name, layer) of every BatchNorm layer, including SyncBatchNorm."""
    # The base class is private, but it is the only common type of all variants.
    return ((name, m) for name, m in model.named_modules() if isinstance(m, _BatchNorm))


def batchnorm_weights(model: nn.Module, weights: Tree) -> Tree:
    """The weights that belong to BatchNorm layers."""
    layers = {name for name, _ in batchnorm_layers(model)}
    return select_weights(weights, lambda name: name.rpartition(".")[0] in layers)


def freeze(model: nn.Module, *, frozen: bool) -> None:
    """Make BatchNorm use its running statistics without updating them, or undo that."""
    for _, layer in batchnorm_layers(model):
        layer.train(not frozen)


def recalibration_bytes(model: nn.Module, broadcast: Tree) -> tuple[int, int]:
    """(down, up) bytes per client: shared weights down, shared statistics up.

    Both are 0 if no statistics are shared.
    """
    weights = model_weights(broadcast)
    statistics = batchnorm_weights(model, weights)["buffers"]
    return (num_bytes(weights), num_bytes(statistics)) if statistics else (0, 0)
