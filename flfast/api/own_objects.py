"""Objects of a Python program: checked, and described for the config."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.api.arguments import Arguments
from flfast.api.own_data import read_data
from flfast.api.own_parts import chosen_task
from flfast.config.errors import ConfigError
from flfast.config.own import OWN, Own
from flfast.datamodules.preprocessing import Preprocessing
from flfast.datamodules.samples import CollatedSamples, StackedSamples
from flfast.lit.module_hooks import overridden
from flfast.lit.user_module import is_user_module, steps_itself
from flfast.setup.model_check import check_copies, check_initialized, check_module

_KINDS = {
    "model": (nn.Module, "a torch.nn.Module"),
    "algorithm": (Algorithm, "an Algorithm"),
}
"""What an argument is, or what a function that it is returns."""


def own_objects(
    given: Arguments, settings: Sequence[str], kept: Preprocessing | None = None
) -> Own:
    """The record of what replaces options of the config; the settings may name the task.

    With `kept`, of a trained model, data become what they were for that model.

    Raises:
        ConfigError: naming the argument, what it is, and what is allowed.
    """
    for group, (kind, allowed) in _KINDS.items():
        value = getattr(given, group)
        if not (value is None or isinstance(value, kind) or callable(value)):
            raise ConfigError(
                f"{group}= is of type {type(value).__name__}; allowed: {allowed}, or a "
                f"function that returns one"
            )
    model = given.model
    if given.data is None and _has_own_loaders(model, settings):
        given = given._replace(data=model)
    if isinstance(model, nn.Module):
        where = f"model={name_of(model)}"
        check_module(where, model)
        check_copies(where, model)
        if not is_user_module(model):  # which makes its layers in configure_model
            check_initialized(where, model)
    made = model.func if isinstance(model, partial) else model
    trains_itself = is_user_module(made) or (isinstance(made, type) and steps_itself(made))
    task = "module" if trains_itself else chosen_task(settings)
    about = {name: getattr(given, name) for name in ("target", "client", "labels")}
    examples = read_data(given, task, kept)
    about["batch_size"] = getattr(examples, "batch_size", None)
    objects = {"data": examples, "model": model, "algorithm": given.algorithm}
    nodes: dict[str, dict[str, Any]] = {
        group: {"_target_": name_of(getattr(given, group)), OWN: fingerprint(content)}
        for group, content in objects.items()
        if content is not None
    }
    if examples is not None:
        nodes["data"] |= {"test_data": True} if given.test_data is not None else {}
        nodes["data"] |= {
            name: word if isinstance(word, (str, int)) else name.upper()
            for name, word in about.items()
            if word is not None
        }
    return Own(**objects, nodes=nodes, trains_itself=trains_itself)


def with_callbacks(objects: Own, callbacks: Any) -> Own:
    """The same objects, and callbacks by the names of their classes, numbered where need be.

    Raises:
        ConfigError: naming what is no callback.
    """
    named: dict[str, L.Callback] = {}
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if not isinstance(callback, L.Callback):
            raise ConfigError(
                f"callbacks= has a {type(callback).__name__}; allowed: objects of "
                f"lightning.Callback"
            )
        name = type(callback).__name__
        named[f"{name}_{len(named) + 1}" if name in named else name] = callback
    nodes = {f"callbacks.{n}": {"_target_": name_of(c), OWN: n} for n, c in named.items()}
    return replace(objects, callbacks=named, nodes={**objects.nodes, **nodes})


def _has_own_loaders(model: object, settings: Sequence[str]) -> bool:
    """Whether a LightningModule is its own data: it has loaders, and no other data are chosen."""
    chosen = any(word.startswith("data=") for word in settings)
    return not chosen and is_user_module(model) and bool(overridden(model, ["train_dataloader"]))


def name_of(value: Any) -> str:
    """Dotted path of a function or class, or of an object's class."""
    while isinstance(value, partial):
        value = value.func
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def fingerprint(value: Any) -> str:
    """Hash of an object's content: of its tensors, of its settings, and of its functions' code.

    Functions are compared by their compiled code, which depends on the version of Python. What
    is neither a tensor, a function, a module, a dataclass nor plain data counts by its class only.
    """
    found = hashlib.sha256()
    for part in _parts(value, {}):
        found.update(part)
    return found.hexdigest()[:16]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[bytes | memoryview]:
    """The content of an object; `seen` holds what was read already, by id."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        yield repr(value).encode()
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive: another object must not get its id
    yield type(value).__qualname__.encode()
    if is_lazy(value):
        yield b"lazy"
    elif isinstance(value, Tensor):
        value = value.detach().cpu()
        yield f"{value.dtype} {list(value.shape)}".encode()
        yield memoryview(value.contiguous().flatten().view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype} {list(value.shape)}".encode()
        yield np.ascontiguousarray(value).tobytes()  # dates have no buffer
    else:
        for child in _children(value):
            yield from _parts(child, seen)


def _children(value: Any) -> list[Any]:
    found: list[Any] = [name_of(value)]
    if isinstance(value, Mapping):
        found += [part for pair in value.items() for part in pair]
    elif isinstance(value, (list, tuple)):
        found += value
    elif isinstance(value, partial):
        found += [value.func, value.args, value.keywords]
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        found += [*_content(value.__code__), value.__defaults__, value.__kwdefaults__, cells]
    elif isinstance(value, nn.Module):
        found += [repr(value), value.state_dict()]
    elif isinstance(value, (StackedSamples, CollatedSamples)):
        found += vars(value).values()
    elif is_dataclass(value) and not isinstance(value, type):
        found += [getattr(value, field.name) for field in fields(value)]
    return found


def _content(code: CodeType) -> Iterator[Any]:
    """What a function does: instructions, names, constants; inner functions included."""
    yield code.co_code
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _content(constant)
        elif not isinstance(constant, frozenset):  # its order is not that of another process
            yield constant
