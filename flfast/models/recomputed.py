"""Gradient checkpointing: layers keep their inputs only, and compute again in the backward pass.

Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost. 2016.
https://arxiv.org/abs/1604.06174
"""

import re
from collections import Counter
from functools import partial
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

    Args:
        model: any.
        chosen: `auto` for repeated blocks: layers of one class in an `nn.Sequential` or
            `nn.ModuleList`. Otherwise a regular expression of all of a class's name or a path.

    Raises:
        ValueError: if the model has no such layers.
    """
    blocks = _repeated(model) if chosen == "auto" else _matching(model, chosen)
    if not blocks:
        known = dict.fromkeys(type(layer).__name__ for layer in _composed(model).values())
        raise ValueError(
            f"recompute={chosen}: the model has no such layers; allowed: null, auto if a model "
            f"repeats a block, or a class or path of layers that are made of layers: "
            f"{', '.join(known) or 'none here'}"
        )
    done: list[str] = []
    for path, layer in blocks.items():
        if not any(path.startswith(f"{outer}.") for outer in done):
            done.append(path)
            kind = type(layer)
            # In the class, because a copy of the model must not call the forward of this one.
            # Listed once: `buffers` calls `state_dict`, in which FSDP lets go of what it gathered.
            known = {"__module__": kind.__module__, "changing": frozenset(buffers(layer))}
            layer.__class__ = type(kind.__name__, (Recomputed, kind), known)


def recomputes(model: nn.Module) -> bool:
    """Whether a model has such layers."""
    return any(isinstance(module, Recomputed) for module in model.modules())


def _composed(model: nn.Module) -> dict[str, nn.Module]:
    """Layers made of layers, by path: of others, at most the input would be kept anyway."""
    return {
        path: module
        for path, module in model.named_modules()
        if path
        and any(module.children())
        and not isinstance(module, nn.ModuleList | nn.ModuleDict)
    }


def _matching(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    try:
        match = partial(re.fullmatch, pattern)
        return {
            path: layer
            for path, layer in _composed(model).items()
            if match(path) or match(type(layer).__name__)
        }
    except re.error as error:
        raise ValueError(f"recompute={pattern} is no regular expression: {error}") from None


def _repeated(model: nn.Module) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    composed = _composed(model)
    for path, parent in model.named_modules():
        if isinstance(parent, nn.Sequential | nn.ModuleList):
            counts = Counter(map(type, parent.children()))
            paths = {f"{path}.{name}" if path else name: m for name, m in parent.named_children()}
            found |= {p: m for p, m in paths.items() if p in composed and counts[type(m)] > 1}
    return found
