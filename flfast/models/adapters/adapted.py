"""A model with an adapter: its base is frozen, and the trees of a run hold the adapter only."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flfast.models.adapters.frozen_base import FrozenBase
from flfast.state.tree import Tree
from flfast.state.weights import buffers, by_name, read_weights, write_weights

ADAPTER = "adapter"
"""Name of the folder that a run leaves of its adapter."""

FILE = "adapter_model.safetensors"
"""Name of an adapter's file in peft's format."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model with an adapter in place.

    Attributes:
        model: changed in place: its parameters are the adapter's.
        whole: names and data types of the model's weights without the adapter.
        merge: changes a copy of the model in place, so that it has these weights again.
        saved_name: name of a leaf -> its name in the adapter's file.
        changes: products B A of low-rank factors by name of A -> changes of the base's leaves.
        fixed: names of frozen leaves that the adapter's file needs.
        settings: JSON of `adapter_config.json`; None if no library reads it.
    """

    name: str
    model: nn.Module
    base: FrozenBase
    whole: Mapping[str, torch.dtype]
    merge: Callable[[nn.Module], None] = lambda model: None
    saved_name: Callable[[str], str] = lambda name: name
    changes: Callable[[Tree], dict[str, Tensor]] = lambda products: {}
    fixed: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None

    def complete(self, weights: Tree) -> dict[str, Tensor]:
        """State dict of the model without adapter: the base, changed as these weights do."""
        model = self.base.copy_of_model()
        write_weights(model, weights)
        self.merge(model)
        found = dict([*model.named_parameters(), *model.named_buffers()])
        return {name: found[name].detach().cpu().to(dtype) for name, dtype in self.whole.items()}

    def fold(self, products: Tree) -> None:
        """Let the base be what was given plus what products B A of low-rank factors add to it."""
        if products is not self.base.folded:
            self.base.change(self.changes(products))
            self.base.folded = products

    def from_whole(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The adapter's leaves by name, from a complete model whose base becomes the adapter's.

        Low-rank factors are first ones, whose products are zero.
        """
        names = {name: name.replace(".base_layer.", ".") for name in self.base.leaves}
        self.base.replace({name: weights[whole] for name, whole in names.items()})
        leaves = by_name(read_weights(self.model))
        return {n: weights.get(n.replace(".base_layer.", "."), leaf) for n, leaf in leaves.items()}

    def to_file(self, weights: Tree) -> dict[str, Tensor]:
        """The tensors of the adapter's file, on the CPU."""
        frozen = self.base.leaves
        named = {**{name: frozen[name] for name in self.fixed}, **by_name(weights)}
        return {self.saved_name(name): leaf.detach().cpu() for name, leaf in named.items()}

    def from_file(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The adapter's leaves by name, from the tensors of its file; others keep their names."""
        fixed = {self.saved_name(name) for name in self.fixed}
        names = {self.saved_name(name): name for name in by_name(read_weights(self.model))}
        return {names.get(name, name): leaf for name, leaf in tensors.items() if name not in fixed}


def whole_model(model: nn.Module) -> dict[str, torch.dtype]:
    """Names and data types of a model's parameters and persistent buffers."""
    return {k: v.dtype for k, v in (*model.named_parameters(), *buffers(model).items())}


def shared_with(model: nn.Module, layer: str) -> list[str]:
    """Names under which parts of the model outside a layer use the layer's parameters."""
    own = set(model.get_submodule(layer).parameters())
    everywhere = model.named_parameters(remove_duplicate=False)
    return [name for name, p in everywhere if p in own and not name.startswith(f"{layer}.")]


def linear_layers(model: nn.Module) -> Iterator[str]:
    """Names of the linear layers that their modules call, in order.

    `nn.MultiheadAttention` does not call its linear layer, but reads the layer's weights.
    """
    inside = nn.modules.linear.NonDynamicallyQuantizableLinear
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not isinstance(module, inside):
            yield name


def none(model: nn.Module) -> None:
    """Leave the model as it is."""
