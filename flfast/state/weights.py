"""Weights of a module as a tree, `{"params": {...}, "buffers": {...}}`, and back."""

import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from flfast.state.dtensor import shard_like, whole
from flfast.state.tree import Tree, merge, tree_map


def read_weights(module: nn.Module) -> Tree:
    """Copy of a module's parameters and persistent buffers, whole and on the CPU, by name.

    Collective where parameters are sharded.
    """
    params = {name: whole(p) for name, p in module.named_parameters()}
    return {"params": params, "buffers": read_buffers(module)}


def read_buffers(module: nn.Module) -> Tree:
    """Copy of a module's persistent buffers, on the CPU, by qualified name."""
    return {name: whole(buffer) for name, buffer in buffers(module).items()}


def buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's persistent buffers by qualified name."""
    # state_dict lists a tied parameter under each of its names; named_parameters only once.
    names = module.state_dict().keys()
    return {name: b for name, b in module.named_buffers() if name in names}


@torch.no_grad()
def write_weights(module: nn.Module, weights: Tree) -> None:
    """Copy a tree of whole tensors into a module in place; dtype, device and cut stay."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for kind in ("params", "buffers"):
        for name, value in weights[kind].items():
            tensor = own[name]
            tensor.copy_(shard_like(value, tensor) if isinstance(tensor, DTensor) else value)


def read_state_dict(path: str, *, key: str) -> dict[str, torch.Tensor]:
    """Flat state dict on the CPU from a file of `torch.save`; nothing that lies in it is run.

    Args:
        path: of the file.
        key: that named it, for the message.

    Raises:
        ValueError: if it is damaged, or holds anything else.
    """
    reason = ""
    found: Any = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's thoughts about what is refused below
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - damaged bytes lead torch to errors of any kind
        reason = f" ({type(error).__name__})"
    if not isinstance(found, dict) or not all(map(_is_weight, found, found.values())):
        raise ValueError(
            f"{key}={path} holds no weights{reason}; allowed: a state dict, as "
            f"torch.save(model.state_dict(), FILE) or another run's model.pt"
        )
    return found


def _is_weight(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_complex()
    )


def load_weights(weights: Tree, state_dict: dict[str, torch.Tensor], *, source: str) -> Tree:
    """Weights with every leaf taken from a state dict.

    Args:
        weights: names and shapes that are expected.
        state_dict: flat, as `torch.save(model.state_dict(), ...)` writes it.
        source: where it came from, for the message.

    Raises:
        ValueError: if names or shapes differ, or a value is NaN or infinite.
    """
    expected = {**weights["params"], **weights["buffers"]}
    missing = sorted(expected.keys() - state_dict.keys())
    unexpected = sorted(state_dict.keys() - expected.keys())
    shapes = [
        f"{name} {list(state_dict[name].shape)} instead of {list(value.shape)}"
        for name, value in expected.items()
        if name in state_dict and state_dict[name].shape != value.shape
    ]
    if missing or unexpected or shapes:
        raise ValueError(
            f"init_from={source} does not fit the model: "
            f"missing {missing or 'nothing'}, unexpected {unexpected or 'nothing'}, "
            f"shapes {shapes or 'fit'}"
        )
    broken = sorted(name for name in expected if not state_dict[name].isfinite().all())
    if broken:
        raise ValueError(
            f"init_from={source} holds NaN or infinity in {', '.join(broken)}: the run that wrote "
            f"it diverged"
        )
    loaded = {
        kind: {name: state_dict[name].to(value.dtype) for name, value in weights[kind].items()}
        for kind in ("params", "buffers")
    }
    return merge(weights, loaded)


def flatten(weights: Tree) -> dict[str, torch.Tensor]:
    """Flat state dict, ready for `torch.save` and `Module.load_state_dict`."""
    flat = {**weights["params"], **weights["buffers"]}
    return tree_map(lambda leaf: leaf.detach().cpu(), flat)
