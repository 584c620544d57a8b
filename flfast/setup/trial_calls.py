"""Calls of a model on trial, in copies: the model itself, with what it keeps in Python, stays.

Programs of the fused engine are recorded once. They would repeat numbers that a model keeps or
draws in Python, and neither run hooks on saved tensors nor compute layers again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from types import MethodType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy

from flfast.state.randomness import same_generators

RECOMPUTES = "computes layers again, or has hooks on saved tensors"
_OF_TORCH = vars(nn.Module()).keys()
_OF_PARTS = (Mapping, MethodType, list, tuple)


def trial_copy(model: nn.Module) -> nn.Module:
    """A copy with the same parameters; the model itself, if it has lazy layers."""
    if any(map(is_lazy, model.parameters())):
        return model
    shared: dict[int, Any] = {id(p): p for p in model.parameters()}
    try:
        return deepcopy(model, {**shared})
    except Exception:  # noqa: BLE001 - such as of a lock, which both have then
        layers = {id(module): module for module in model.modules()}
    for value in [vars(m)[name] for m in layers.values() for name in vars(m).keys() - _OF_TORCH]:
        try:
            deepcopy(value, {**shared, **layers})
        except Exception:  # noqa: BLE001, PERF203
            shared[id(value)] = value
    return deepcopy(model, shared)


def first_outputs(model: nn.Module, inputs: Tensor) -> Any:
    """Outputs of a model, which keeps what only its first call makes, such as a layer or cache."""
    with same_generators():
        outputs = (first := trial_copy(model))(inputs)
        (second := trial_copy(first))(inputs.flip(0))
        if first is not model and not list(changed_attributes(first, second)):
            model(inputs)
    return outputs


@contextmanager
def on_trial(model: nn.Module) -> Iterator[tuple[nn.Module, list[str]]]:
    """Put the global generators back after calls of a copy of a model.

    Yields:
        The copy, and what a program would not repeat of its calls, in words that follow
        "the model"; filled at the end.
    """
    trial, noticed = trial_copy(model), list[str]()
    buffers, enter = [*trial.buffers()], saved_tensors_hooks.__enter__

    def entered(hooks: saved_tensors_hooks) -> None:
        noticed.append(RECOMPUTES)
        enter(hooks)

    watched = patch.object(saved_tensors_hooks, "__enter__", entered)
    with torch.random.fork_rng(devices=[]), same_generators() as drawn, watched:
        yield trial, noticed
    changed = [*changed_attributes(model, trial)]
    if any(now is not before for now, before in zip(trial.buffers(), buffers, strict=True)):
        changed.append("a buffer")
    noticed += [f"changes {name} in forward" for name in changed]
    noticed += [f"draws from {name} in forward" for name in drawn]


def changed_attributes(model: nn.Module, trial: nn.Module) -> Iterator[str]:
    """Attributes and other buffers than weights that differ in a copy after it was called."""
    for (path, module), copy in zip(model.named_modules(), trial.modules(), strict=False):
        names = (vars(module).keys() | vars(copy).keys()) - _OF_TORCH
        before, after = ({n: vars(m).get(n) for n in names} for m in (module, copy))
        local = module._non_persistent_buffers_set  # noqa: SLF001 - it has no other name
        for found, of in ((before, module), (after, copy)):
            found |= {n: of.get_buffer(n) for n in local}
        for name in sorted(before):
            if not _same(before[name], after[name], {}):
                yield f"{path}.{name}".strip(".")


def _same(left: Any, right: Any, seen: dict[tuple[int, int], Any]) -> bool:
    """Whether two objects have the same content; `seen` keeps what was compared."""
    if left is right or isinstance(left, nn.Module) or (id(left), id(right)) in seen:
        return True
    seen[id(left), id(right)] = left, right
    if type(left) is not type(right):
        return False
    try:
        if isinstance(left, (Tensor, np.ndarray)):
            alike = left.dtype == right.dtype and left.shape == right.shape
            return alike and bool((left == right).all())
        if type(left).__eq__ is not object.__eq__ and not isinstance(left, _OF_PARTS):
            return bool(left == right)
        left, right = _parts(left), _parts(right)
    except (TypeError, ValueError, RuntimeError):  # of what cannot be read, such as a lock
        return True
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(_same(*pair, seen) for pair in pairs)


def _parts(value: Any) -> Sequence[Any]:
    """What an object consists of."""
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    return value if isinstance(value, (list, tuple)) else value.__reduce_ex__(4)
