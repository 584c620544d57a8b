"""Heads of one linear layer, for algorithms that compute logits from features."""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Batch, Task
from flfast.algorithms.kit.split import head_layer, split
from flfast.models.adapters.layer_names import layer_of
from flfast.state.tree import Tree, merge
from flfast.state.weights import by_name, model_weights, select_weights


class LinearHead(NamedTuple):
    """The last layer of a model, logits = W z + b.

    Attributes:
        layer: its path.
        names: names of W [C, D] and b [C], if there is one.
        initial: its weights before round 1, `{"params": ..., "buffers": {}}`.
    """

    layer: str
    names: tuple[str, ...]
    initial: Tree

    @property
    def shape(self) -> tuple[int, int]:
        """(classes C, features D)."""
        num_classes, num_features = self.initial["params"][self.names[0]].shape
        return num_classes, num_features

    def features(self, task: Task, weights: Tree, batch: Batch) -> Tensor:
        """Inputs of the layer [B, D]; see `Task.features`."""
        return task.features(weights, batch, layer=self.layer)[0]

    def fixed_features(self, task: Task, weights: Tree, batch: Batch) -> Tensor:
        """Inputs of the layer [B, D] in evaluation mode, without gradient."""
        return task.fixed_features(weights, batch, layer=self.layer)

    def logits(self, weights: Tree, z: Tensor) -> Tensor:
        """Logits [B, C] of features z [B, D], the inputs of the layer.

        Of the weights by name, in any data type, those of the head are read.
        """
        return F.linear(z, *(weights[name].to(z.dtype) for name in self.names))

    def with_offset(self, broadcast: Tree, offset: Tensor) -> Tree:
        """Weights of the broadcast's model with the logits W (z + offset) + b, if it has a b."""
        weight, bias = (broadcast["params"][name] for name in self.names)
        moved = {self.names[1]: bias + weight @ offset.to(weight)}
        return merge(model_weights(broadcast), {"params": moved})


def linear_head(initial: Tree, head: list[str] | None, *, with_bias: bool = False) -> LinearHead:
    """The head of a model, which must be one linear layer.

    Args:
        initial: weights before round 1.
        head: the option `algorithm.head`; None is the last layer.
        with_bias: whether the layer must have a bias.

    Raises:
        ValueError: if the head is anything else than the last layer, or that is not linear.
    """
    layer = head_layer(initial, head)
    last = layer_of(list(initial["params"])[-1])
    own = select_weights(initial, lambda name: layer_of(name) == layer)
    found = by_name(own if head is None else split(initial, head)[0])
    shapes = {name.removeprefix(f"{layer}."): leaf.shape for name, leaf in found.items()}
    weight = shapes.get("weight", ())
    with_b = {"weight": weight, "bias": weight[:1]}
    allowed = [with_b] if with_bias else [with_b, {"weight": weight}]
    is_linear = len(weight) == 2 and shapes in allowed
    if layer != last or found.keys() != by_name(own).keys() or not is_linear:
        shown = "null" if head is None else [*head]
        raise ValueError(
            f"algorithm.head={shown} is {', '.join(found)}; allowed: the last layer, [{last}], if "
            f"it is a linear one{' with a bias' * with_bias}"
        )
    kinds = [kind for kind in ("weight", "bias") if kind in shapes]
    names = tuple(f"{layer}.{kind}" if layer else kind for kind in kinds)
    return LinearHead(layer, names, own)


def last_weight(initial: Tree, *, algorithm: str) -> Tensor:
    """The weight of the last layer, [C, D] if it is linear.

    Raises:
        ValueError: if it is not among them, because only an adapter is trained.
    """
    name = f"{head_layer(initial, None)}.weight".lstrip(".")
    if name not in initial["params"]:
        raise ValueError(
            f"algorithm={algorithm}: {name} is not trained, which tells the number of classes; "
            f"allowed: adapter=none or adapter=head"
        )
    found: Tensor = initial["params"][name]
    return found
