"""Modules that an algorithm has beside the model, such as a gate or a second head."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, float_type
from flfast.state.weights import layer_inputs, map_weights, read_weights


class OwnModule:
    """A module whose weights are leaves of trees, beside those of the model.

    Names of its leaves begin with a dot, as no name in a model does: `.gate.0.weight`. Where
    `start` returns them, they train with the model. They may be in states of the server or of
    clients. The module must do the same in training and in evaluation, so it has no dropout and no
    BatchNorm.

    Args:
        name: name of the module, one per algorithm.
        make: makes the module, with initial weights from torch's global generator.
        like: weights of the model, whose data type the module gets.
        seed: seed of the run; the initial weights are a function of it and of the name.

    Attributes:
        initial: the initial weights, `{"params": ..., "buffers": ...}`.
    """

    def __init__(self, name: str, make: Callable[[], nn.Module], like: Tree, *, seed: int) -> None:
        self._prefix = f".{name}."
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(torch_generator(seed, f"initial weights of {name}").get_state())
            self._module = make().requires_grad_(requires_grad=False)
        self._module.to(float_type(like["params"]))
        self.initial: Tree = map_weights(self._prefixed, read_weights(self._module))

    def __call__(self, weights: Tree, *inputs: Tensor) -> Any:
        """What the module computes of its inputs, all of one type.

        Weights are by name; others are ignored. They are converted to the type of the inputs.
        """
        own = {
            name.removeprefix(self._prefix): leaf.to(inputs[0].dtype)
            for name, leaf in weights.items()
            if name.startswith(self._prefix)
        }
        return functional_call(self._module, own, inputs, strict=True)

    def features(self, weights: Tree, inputs: Tensor, *, layer: str) -> tuple[Tensor, Tensor]:
        """Inputs [B, D] of a layer of the module, and its outputs."""
        with layer_inputs(self._module, layer) as captured:
            outputs = self(weights, inputs)
        return captured[0], outputs

    def _prefixed(self, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        return {self._prefix + name: leaf for name, leaf in leaves.items()}
