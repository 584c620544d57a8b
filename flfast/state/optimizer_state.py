"""State of a torch optimizer as a tree of tensors, which can be averaged, sent and stored."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flfast.state.tree import Tree, tree_map
from flfast.state.weights import full_copy

LOCAL_MESSAGE = {
    "option": "local_optimizer_state=keep or average",
    "remedy": "another optimizer, or local_optimizer_state=reset",
}
"""Options of `state_tensors` for local optimizers."""


def state_tensors(
    state: dict[str, Any], *, option: str, remedy: str = "another optimizer"
) -> Tree:
    """An optimizer's state of one parameter, without entries that are None.

    The message says which option needs tensors, and which setting to use instead.

    Raises:
        ValueError: if an entry is not a tensor.
    """
    tensors = {name: value for name, value in state.items() if value is not None}
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{option} needs an optimizer whose state is tensors; {name} is a "
                f"{type(value).__name__}; use {remedy}"
            )
    return tensors


def load_optimizer_state(optimizer: Optimizer, state: Tree, names: Iterable[str]) -> None:
    """Give a new optimizer, of one parameter group, a state by parameter name.

    The names are those of its parameters, in order; without an entry they start fresh.
    """
    # load_state_dict keeps the tensors it gets, and steps change them in place.
    copies = {i: tree_map(torch.clone, state.get(name, {})) for i, name in enumerate(names)}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": copies})


def read_optimizer_state(optimizer: Optimizer, params: Mapping[str, Tensor]) -> Tree:
    """Copy of a local optimizer's state by parameter name, on the CPU.

    `params` are all that it may train. Gathering the state of sharded ones is collective.

    Raises:
        ValueError: if it is not tensors only.
    """
    names = {p: name for name, p in params.items()}
    states = optimizer.state.items()
    tensors = {names[p]: state_tensors(state, **LOCAL_MESSAGE) for p, state in states}
    return tree_map(full_copy, tensors)


def trial_step(optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
    """Take a step with all gradients 1; optimizers call the closure as often as they like."""

    def closure() -> float:
        for p in parameters:
            p.grad = torch.ones_like(p)
        return 0.0

    closure()
    optimizer.step(closure)
