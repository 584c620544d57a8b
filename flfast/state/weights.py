"""Weights of a module as a tree, `{"params": {...}, "buffers": {...}}`, and back.

Those of a model that is sharded as by torch's FSDP2 are DTensors: each rank holds a chunk of
dimension 0.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils.stateless import _reparametrize_module

from flfast.state.precision import placed
from flfast.state.regular_file import require_file
from flfast.state.tensor_file import check_tensors
from flfast.state.tree import Tree, named_leaves

WEIGHTS = ("params", "buffers")


def model_weights(tree: Tree) -> Tree:
    """`params` and `buffers` of a server state, a broadcast or a client state."""
    return {"params": tree["params"], "buffers": tree["buffers"]}


def map_weights(fn: Callable[[dict[str, Any]], Any], weights: Tree) -> Tree:
    """Apply `fn` to the dict of parameters and to the dict of buffers.

    >>> map_weights(len, {"params": {"fc.weight": 0, "fc.bias": 0}, "buffers": {}})
    {'params': 2, 'buffers': 0}
    """
    return {"params": fn(weights["params"]), "buffers": fn(weights["buffers"])}


def select_weights(weights: Tree, keep: Callable[[str], bool]) -> Tree:
    """The parameters and buffers whose names `keep` accepts.

    >>> select_weights({"params": {"a": 1, "b": 2}, "buffers": {"c": 3}}, {"a", "c"}.__contains__)
    {'params': {'a': 1}, 'buffers': {'c': 3}}
    """
    return map_weights(
        lambda part: {name: leaf for name, leaf in part.items() if keep(name)}, weights
    )


def read_weights(module: nn.Module) -> Tree:
    """Copy of a module's parameters and persistent buffers by name, on the CPU.

    Sharded parameters are gathered, which is collective.
    """
    params = {name: full_copy(p) for name, p in module.named_parameters()}
    return {"params": params, "buffers": read_buffers(module)}


def read_buffers(module: nn.Module) -> Tree:
    """Copy of a module's persistent buffers, on the CPU, by qualified name."""
    return {name: full_copy(buffer) for name, buffer in buffers(module).items()}


def buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's persistent buffers by qualified name."""
    # state_dict lists a tied parameter under each of its names; named_parameters only once.
    names = module.state_dict().keys()
    return {name: b for name, b in module.named_buffers() if name in names}


def using_weights(module: nn.Module, weights: dict[str, Any]) -> AbstractContextManager[None]:
    """A module's weights are these within the context, for any of its methods."""
    return _reparametrize_module(module, weights, tie_weights=True, stack_weights=True)


def called_with(module: nn.Module, weights: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.func.functional_call`, which cannot put back the weights of a layer in two places."""
    with using_weights(module, weights):
        return module(*args, **kwargs)


@contextmanager
def layer_inputs(module: nn.Module, layer: str) -> Iterator[list[torch.Tensor]]:
    """What a layer of a module gets in each call within the context, as rows [B, D]."""
    captured: list[torch.Tensor] = []
    hook = module.get_submodule(layer).register_forward_pre_hook(
        lambda _, inputs: captured.append(inputs[0].flatten(1))
    )
    try:
        yield captured
    finally:
        hook.remove()


@torch.no_grad()
def write_weights(module: nn.Module, weights: Tree) -> None:
    """Copy full tensors into a module in place; its dtype, device and sharding stay."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in by_name(weights).items():
        tensor = tensors[name]
        tensor.copy_(shard_like(value, tensor) if isinstance(tensor, DTensor) else value)


def convert_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """Give all floating-point parameters and buffers of a module a data type, in place.

    `Module.to` would also drop the imaginary parts of complex ones.
    """
    module._apply(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf)  # noqa: SLF001


def dtype_of_module(module: nn.Module) -> torch.dtype:
    """Data type of a module's first floating-point parameter; torch's default if it has none."""
    types = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(types, torch.get_default_dtype())


def read_state_dict(
    path: str, *, key: str, names: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """Read a flat state dict from a file, without running code from the file.

    It is one of `torch.save`, or of safetensors if it ends in `.safetensors`; or that in a
    checkpoint of Lightning, if it fits the given names. Messages name `key`.

    Raises:
        ValueError: if the file is damaged, or holds anything else.
    """
    reason = ""
    found: Any = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of content that is refused below
            require_file(path)
            if path.endswith(".safetensors"):
                found = load_file(path)
            else:
                check_tensors(path)
                found = _load(path, names)
    except Exception as error:  # noqa: BLE001 - damaged bytes raise any error
        reason = f" ({error if type(error) is ValueError else type(error).__name__})"
    if not isinstance(found, dict) or not all(map(_is_weight, found, found.values())):
        inner = found.get("state_dict") if isinstance(found, dict) else None
        if isinstance(inner, dict) and inner and all(map(_is_weight, inner, inner.values())):
            kept = {name: w for name, w in inner.items() if name in names}
            # A layer in two places is there under both names.
            places = [{w.data_ptr() for w in part.values()} for part in (inner, kept)]
            if kept and len(kept) == len(names) and places[0] == places[1]:
                return kept
            raise ValueError(f"{key}={path} is a checkpoint; {_how_to_take(path, inner)}")
        raise ValueError(
            f"{key}={path} holds no weights{reason}; allowed: a state dict, as "
            f"torch.save(model.state_dict(), FILE), of a checkpoint its state dict alone, or "
            f"another run's model.pt or model.safetensors"
        )
    return found


class _Nothing:
    """Stands for what is no tensor, such as a class among the hyperparameters of a checkpoint."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    __setstate__ = __init__


def _load(path: str, names: Collection[str]) -> Any:
    others = torch.serialization.get_unsafe_globals_in_checkpoint(path) if names else []
    with torch.serialization.safe_globals([(_Nothing, name) for name in others]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _how_to_take(path: str, weights: dict[str, torch.Tensor]) -> str:
    """How to write the weights of a checkpoint to a file of their own, in Python."""
    first = {name.partition(".")[0] for name in weights}
    # Of a LightningModule with the network as an attribute, which is in front of all names.
    name = f"name.removeprefix({first.pop() + '.'!r})" if len(first) == 1 else "name"
    read = f"torch.load({path!r}, weights_only=True)['state_dict']"
    return (
        f"allowed: its weights alone, under the names that the model has; in Python: "
        f"torch.save({{{name}: w for name, w in {read}.items()}}, 'weights.pt')"
    )


def _is_weight(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_complex()
    )


def load_weights(weights: Tree, state_dict: dict[str, torch.Tensor], *, source: str) -> Tree:
    """The weights with the values of a flat state dict; messages name its source.

    Raises:
        ValueError: if names or shapes differ, or a value is NaN or infinite.
    """
    expected = by_name(weights)
    missing = sorted(expected.keys() - state_dict.keys())
    unexpected = sorted(state_dict.keys() - expected.keys())
    shapes = [
        f"{name} {list(state_dict[name].shape)} instead of {list(value.shape)}"
        for name, value in expected.items()
        if name in state_dict and state_dict[name].shape != value.shape
    ]
    if missing or unexpected or shapes:
        raise ValueError(
            f"{source} does not fit the model: "
            f"missing {missing or 'nothing'}, unexpected {unexpected or 'nothing'}, "
            f"shapes {shapes or 'fit'}"
        )
    broken = sorted(name for name in expected if not state_dict[name].isfinite().all())
    if broken:
        raise ValueError(
            f"{source} holds NaN or infinity in {', '.join(broken)}: the run that wrote "
            f"it diverged"
        )
    loaded = map_weights(
        lambda part: {name: state_dict[name].to(leaf.dtype) for name, leaf in part.items()},
        weights,
    )
    return {**weights, **loaded}


def by_name(weights: Tree) -> dict[str, torch.Tensor]:
    """Parameters and buffers in one dict."""
    return {**weights["params"], **weights["buffers"]}


def flatten(tree: Tree) -> dict[str, torch.Tensor]:
    """Flat state dict on the CPU, ready for `torch.save` and `Module.load_state_dict`.

    Other leaves than parameters and buffers have their path, such as `models/params/fc.bias`.
    """
    others = {name: part for name, part in tree.items() if name not in WEIGHTS}
    weights = by_name({name: tree.get(name, {}) for name in WEIGHTS})
    paths = named_leaves(others, separator="/")
    return {name: leaf.detach().cpu() for name, leaf in (*weights.items(), *paths)}


def shard_like(value: Tensor, like: DTensor) -> DTensor:
    """Shard a tensor that every rank holds in full as `like` is; without communication."""
    mesh = like.device_mesh
    chunks = value.chunk(mesh.size())  # fewer than ranks if dimension 0 is short
    rank = mesh.get_local_rank()
    chunk = (chunks[rank] if rank < len(chunks) else value[:0]).to(like.device)
    return DTensor.from_local(
        chunk, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def full_copy(tensor: Tensor) -> Tensor:
    """Full copy of a tensor on the CPU; gathering a sharded one is collective."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        return tensor.full_tensor().cpu()
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


def place_tree(
    tree: Tree, params: Mapping[str, Tensor], device: torch.device, like: Tensor | None = None
) -> Tree:
    """Move a tree to a device, and shard the leaves that belong to sharded parameters alike.

    A leaf belongs to the parameter that has its shape, and its name or that of an outer dict,
    whose parameter is `like`.
    """
    found: Tree = {}
    for name, leaf in tree.items():
        param = params.get(name, like)
        if isinstance(leaf, dict):
            found[name] = place_tree(leaf, params, device, param)
        elif isinstance(param, DTensor) and leaf.shape == param.shape:
            found[name] = shard_like(leaf, param)
        else:
            found[name] = placed(leaf, device)
    return found
