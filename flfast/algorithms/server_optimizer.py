"""A server that takes its step with an optimizer of torch.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization.
ICLR 2021, Algorithm 1. https://arxiv.org/abs/2003.00295
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flfast.algorithms.algorithm import Algorithm, Uploads
from flfast.state.tree import Tree, sub, tree_map

MakeOptimizer = Callable[..., Optimizer]


def server_optimized(algorithm: Algorithm, make_optimizer: MakeOptimizer) -> Algorithm:
    """The algorithm with an optimizer on the server, whose state is part of the server state.

    Its gradient is what the mean of the uploads lacks to the server's parameters. Buffers become
    their mean.

    Args:
        algorithm: must upload weights.
        make_optimizer: parameters -> any torch optimizer that needs no closure.

    Raises:
        ValueError: if the optimizer keeps something that is not a tensor.
        TypeError: if it cannot take a step without a closure.
    """
    trial = {"w": torch.zeros(1)}
    _step(make_optimizer, trial, trial, {})

    def server_state(weights: Tree) -> Tree:
        return {**algorithm.server_state(weights), "server_optimizer": {}}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        gradient = sub(server["params"], uploads.mean["params"])
        params, state = _step(
            make_optimizer, server["params"], gradient, server["server_optimizer"]
        )
        return {**server, **uploads.mean, "params": params, "server_optimizer": state}

    return replace(algorithm, server_state=server_state, server_step=server_step)


def _step(
    make_optimizer: MakeOptimizer, params: Tree, grads: Tree, state: Tree
) -> tuple[Tree, Tree]:
    """(parameters, state by parameter name) after a step; nothing is changed in place."""
    if not params:
        return {}, {}
    own = {name: nn.Parameter(params[name].to(g.dtype, copy=True)) for name, g in grads.items()}
    for name, p in own.items():
        p.grad = grads[name]
    optimizer = make_optimizer(list(own.values()))
    if state:
        copies = enumerate(tree_map(torch.clone, state[name]) for name in own)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": dict(copies)})
    optimizer.step()
    kept = {name: _tensors(optimizer.state[p]) for name, p in own.items()}
    return {name: p.detach() for name, p in own.items()}, kept


def _tensors(state: dict[str, Any]) -> Tree:
    for name, value in state.items():
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(
                f"algorithm.server_optimizer keeps {name}={value}; its state must be tensors"
            )
    return {name: value for name, value in state.items() if value is not None}
