"""Freezes the base of a model: its weights leave the trees, and exist once per process.

The base's parameters and buffers become buffers of their modules that are not persistent. Trees
are made of parameters and persistent buffers, so the base is in no tree: it is neither sent nor
copied for a client. Forward passes find it in the modules.

Lightning moves a model to its device and back in every `fit`. The base is copied to a device once,
and stays there. So compiled programs, which refer to its tensors, all refer to the same ones.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flfast.state.tree import float_type
from flfast.state.weights import convert_weights, dtype_of_module

_BASE = "frozen_base"
"""Attribute of a model in which its frozen base is found."""


class _Place(NamedTuple):
    """A frozen leaf: module, key there, name in the model, and number, which places may share.

    `trains` is whether it was a parameter of floating point.
    """

    module: nn.Module
    key: str
    name: str
    number: int
    trains: bool


class FrozenBase:
    """The frozen leaves of a model, which is changed in place: all but the trained parameters."""

    def __init__(self, model: nn.Module, trained: Iterable[str]) -> None:
        self._model, kept = model, set(trained)
        self._base: list[Tensor] = []
        self._places: list[_Place] = []
        self._given: dict[str, Tensor] = {}  # first values of leaves that have changed
        self.folded: object = None  # what it was changed by
        self._copies: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
        indices: dict[Tensor, int] = {}  # weights that modules share stay shared
        for path, module in model.named_modules():
            params = module.named_parameters(recurse=False, remove_duplicate=False)
            buffers = module.named_buffers(recurse=False, remove_duplicate=False)
            for key, leaf in [*params, *buffers]:
                name = f"{path}.{key}" if path else key
                if name not in kept:
                    number = indices.setdefault(leaf, len(indices))
                    if number == len(self._base):
                        self._base.append(leaf.detach())
                    delattr(module, key)
                    module.register_buffer(key, None, persistent=False)
                    trains = isinstance(leaf, nn.Parameter) and leaf.is_floating_point()
                    self._places.append(_Place(module, key, name, number, trains))
        self._put(dict(enumerate(self._base)))
        # torch has no hook for moves of a module; a parent moves this one by the same method.
        model.__dict__["_apply"] = self._move
        model.__dict__[_BASE] = self

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The leaves by name, on the device and of the type on which they were given."""
        return {place.name: self._base[place.number] for place in self._places}

    def change(self, changes: Mapping[str, Tensor]) -> None:
        """Let leaves be what was given plus changes."""
        now = self.leaves
        for name in changes:
            self._given.setdefault(name, now[name].clone())
        self.replace({n: self._given[n] + change.to(now[n]) for n, change in changes.items()})

    def replace(self, leaves: Mapping[str, Tensor]) -> None:
        """Give leaves other values, in place: programs refer to their tensors."""
        for place in self._places:
            if place.name in leaves:
                self._base[place.number].copy_(leaves[place.name])
                for copies in self._copies.values():
                    if place.number in copies:
                        copies[place.number].copy_(leaves[place.name])

    def copy_of_model(self) -> nn.Module:
        """A copy of the model on the CPU, with the leaves as they were given."""
        own = {key: self._model.__dict__.pop(key) for key in ("_apply", _BASE)}
        try:
            model = deepcopy(self._model)
        finally:
            self._model.__dict__.update(own)
        first = self.leaves
        convert_weights(model.cpu(), float_type(first))
        paths = dict(model.named_modules())
        for name, leaf in first.items():
            path, _, key = name.rpartition(".")
            paths[path].register_buffer(key, leaf.cpu().clone(), persistent=False)
        return model

    def copy_with_parameters(self) -> nn.Module:
        """A copy of the model whose frozen parameters are parameters again, without a gradient."""
        model = self.copy_of_model()
        paths, made = dict(model.named_modules()), dict[int, nn.Parameter]()
        for place in self._places:
            if place.trains:
                module = paths[place.name.rpartition(".")[0]]
                leaf = getattr(module, place.key)
                made.setdefault(place.number, nn.Parameter(leaf, requires_grad=False))
                delattr(module, place.key)
                setattr(module, place.key, made[place.number])
        return model

    def _move(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002 - as in torch
        """Move or convert the model as `nn.Module._apply`, but keep copies of the base."""
        now = {place.number: getattr(place.module, place.key) for place in self._places}
        self._put(dict.fromkeys(now))
        try:
            type(self._model)._apply(self._model, fn, recurse)  # noqa: SLF001
        finally:
            self._put({number: self._copy(number, leaf, fn) for number, leaf in now.items()})
        return self._model

    def _copy(self, number: int, now: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
        like = fn(now.new_empty(0))
        first = self._base[number]
        wanted = (like.device, like.dtype)
        if wanted == (first.device, first.dtype):
            return first
        copies = self._copies.setdefault(wanted, {})
        if number not in copies:
            copies[number] = first.to(*wanted)
        return copies[number]

    def _put(self, leaves: dict[int, Any]) -> None:
        """Put leaves into their modules."""
        for place in self._places:
            place.module.register_buffer(place.key, leaves[place.number], persistent=False)
        for module in {id(place.module): place.module for place in self._places}.values():
            if isinstance(module, nn.RNNBase):
                module._init_flat_weights()  # noqa: SLF001 - it has a list of its parameters


def copy_to_shard(model: nn.Module) -> nn.Module:
    """A copy of a model with all weights as parameters, those of a frozen base included."""
    base: FrozenBase | None = getattr(model, _BASE, None)
    if base is None:
        return deepcopy(model)
    copy = base.copy_with_parameters()  # of the type in which the base was given
    convert_weights(copy, dtype_of_module(model))
    return copy
