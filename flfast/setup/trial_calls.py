"""Calls of a model on trial: what they change in Python is noticed, and put back.

Programs of the fused engine are recorded once. They would repeat numbers that a model keeps or
draws in Python, and neither run hooks on saved tensors nor compute layers again.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

RECOMPUTES = "computes layers again in its backward pass, or has hooks on saved tensors"
_OF_TORCH = vars(nn.Module()).keys()
_Place = tuple[nn.Module, str, str]


@contextmanager
def on_trial(model: nn.Module) -> Iterator[list[str]]:
    """Call a model as often as you like: its attributes, buffers and all generators are put back.

    Weights are not, and gradients must not be added up. Layers that the calls make stay, with all
    that the calls changed.

    Yields:
        What a program could not repeat, in words that follow "the model"; filled at the end.
    """
    noticed: list[str] = []
    generators = random.getstate(), np.random.get_state()
    before = {(m, path, n): v for m, path in _modules(model) for n, v in _attributes(m)}
    layers = [*model.modules()]
    kept = [*layers, *model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {id(each): each for each in kept}
    copies = {place: _copied(value, memo) for place, value in before.items()}
    tensors = {(m, path, n): b for m, path in _modules(model) for n, b in m._buffers.items()}  # noqa: SLF001
    values = {place: b.clone() for place, b in tensors.items() if b is not None}
    enter = saved_tensors_hooks.__enter__

    def watched(hooks: saved_tensors_hooks) -> None:
        noticed.append(RECOMPUTES)
        enter(hooks)

    try:
        with patch.object(saved_tensors_hooks, "__enter__", watched), torch.random.fork_rng([]):
            yield noticed
    finally:
        for name, old, new in zip(
            ("Python's random", "NumPy's global generator"),
            generators,
            (random.getstate(), np.random.get_state()),
            strict=True,
        ):
            if not _same(old, new, {}):
                noticed.append(f"draws from {name} in forward")
        random.setstate(generators[0])
        np.random.set_state(generators[1])
        if layers == [*model.modules()]:  # otherwise the model was not complete before
            noticed += _put_back(model, before, copies)
            noticed += _put_back_buffers(tensors, values)
        noticed[:] = dict.fromkeys(noticed)


def _modules(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    return ((module, f"{path}." if path else "") for path, module in model.named_modules())


def _attributes(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(module).items() if name not in _OF_TORCH]


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return deepcopy(value, memo)
    except Exception:  # noqa: BLE001 - what cannot be copied, such as a file, stays
        return value


def _put_back(
    model: nn.Module, before: Mapping[_Place, Any], copies: Mapping[_Place, Any]
) -> Iterator[str]:
    """Undo changes of attributes; yields them in words."""
    for module, path in _modules(model):
        for name, value in _attributes(module):
            place = (module, path, name)
            replaced = isinstance(value, Tensor) and value is not before.get(place)
            if place in copies and not replaced and _same(copies[place], value, {}):
                continue
            yield f"changes its attribute {path}{name} in forward"
            del vars(module)[name]
    for (module, _, name), value in copies.items():
        vars(module).setdefault(name, value)


def _put_back_buffers(
    tensors: Mapping[_Place, Tensor | None], values: Mapping[_Place, Tensor]
) -> Iterator[str]:
    """Undo changes of buffers; yields those that are no part of the weights."""
    for place, tensor in tensors.items():
        module, path, name = place
        now = module._buffers.get(name)  # noqa: SLF001 - also buffers that are None
        local = name in module._non_persistent_buffers_set  # noqa: SLF001
        if now is not tensor or (local and not _same(tensor, values.get(place), {})):
            yield f"changes its buffer {path}{name} in forward"
        module._buffers[name] = tensor  # noqa: SLF001
        if tensor is not None:
            tensor.copy_(values[place])


def _same(one: Any, other: Any, seen: dict[tuple[int, int], Any]) -> bool:
    """Whether two objects have the same content; `seen` keeps what was compared."""
    if one is other or (id(one), id(other)) in seen:
        return True
    seen[id(one), id(other)] = one, other
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        # NaN is the same as NaN.
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[k], other[k], seen) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(lambda a, b: _same(a, b, seen), one, other))
    try:
        if type(one).__eq__ is not object.__eq__:
            return bool(one == other)
        return _same(one.__reduce_ex__(4), other.__reduce_ex__(4), seen)
    except (TypeError, ValueError, RuntimeError):  # such as a lock, or a record of arrays
        return True
