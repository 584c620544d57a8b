"""Gradient checkpointing: layers keep their inputs only, and compute again in the backward pass.

Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost. 2016. arXiv:1604.06174
"""

import re
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from flfast.state.weights import buffers


class Recomputed:
    """Mixed into the class of a layer. Numbers are the same, random ones and buffers included."""

    changing: frozenset[str]
    """Names of buffers that a pass may change."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's outputs."""
        layer: Any = self
        plain = super().forward  # type: ignore[misc]
        if not (layer.training and torch.is_grad_enabled()):
            return plain(*args, **kwargs)
        params = dict(layer.named_parameters())
        before = {n: b.clone() for n, b in layer.named_buffers() if n in self.changing}
        passes = 0

        def compute(*args: Any) -> Any:
            nonlocal passes
            passes += 1
            if passes == 1:
                return plain(*args, **kwargs)
            # By then, the layer may have other weights: `functional_call` has put back its own.
            # FSDP gathers shards when they are needed, and nobody else replaces them.
            now = dict(layer.named_parameters())
            own = {n for n, p in params.items() if p is now[n] or isinstance(p, DTensor)}
            given = {name: p for name, p in params.items() if name not in own} | before
            named = {f"layer.{name}": leaf for name, leaf in given.items()}
            return functional_call(_Plain(layer, plain), named, args, kwargs)

        return checkpoint(compute, *args, use_reentrant=False)


class _Plain(nn.Module):
    """A layer without its hooks, and without `Recomputed`."""

    def __init__(self, layer: nn.Module, plain: Any) -> None:
        super().__init__()
        self.layer, self.forward = layer, plain


def recompute(model: nn.Module, chosen: str) -> None:
    """Change the classes of the chosen layers in place; weights and their names stay.

    `auto` chooses repeated blocks: layers of one class in an `nn.Sequential` or `nn.ModuleList`.
    Otherwise `chosen` is a regular expression of a whole path or name of a class.

    Raises:
        ValueError: if the model has no such layers.
    """
    # Of a layer that is not made of layers, little more than the input would be kept anyway.
    composed = {
        path: layer
        for path, layer in model.named_modules()
        if path and any(layer.children()) and not isinstance(layer, nn.ModuleList | nn.ModuleDict)
    }
    names = {path: type(layer).__name__ for path, layer in composed.items()}
    try:
        found = [
            path
            for path in composed
            if (_is_repeated(model, path) if chosen == "auto" else re.fullmatch(chosen, path))
            or re.fullmatch(chosen, names[path])
        ]
    except re.error as error:
        raise ValueError(f"recompute={chosen} is no regular expression: {error}") from None
    if not found:
        raise ValueError(
            f"recompute={chosen}: the model has no such layers; allowed: null, auto if a model "
            f"repeats a block, or a class or path of layers that are made of layers: "
            f"{', '.join(dict.fromkeys(names.values())) or 'none here'}"
        )
    for path in found:
        if not any(path.startswith(f"{outer}.") for outer in found):
            layer, kind = composed[path], type(composed[path])
            # Listed once: `buffers` calls `state_dict`, in which FSDP lets go of what it gathered.
            known = {"__module__": kind.__module__, "changing": frozenset(buffers(layer))}
            # In the class, because a copy of the model must not call the forward of this one.
            layer.__class__ = type(kind.__name__, (Recomputed, kind), known)


def recomputes(model: nn.Module) -> bool:
    """Whether a model has such layers."""
    return any(isinstance(module, Recomputed) for module in model.modules())


def _is_repeated(model: nn.Module, path: str) -> bool:
    parent, kind = model.get_submodule(path.rpartition(".")[0]), type(model.get_submodule(path))
    alike = [child for child in parent.children() if type(child) is kind]
    return isinstance(parent, nn.Sequential | nn.ModuleList) and len(alike) > 1
