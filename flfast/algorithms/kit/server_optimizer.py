"""A server step with a torch optimizer; `fedopt` has paper and equations."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from flfast.algorithms.contract import Algorithm, Uploads
from flfast.state.optimizer_state import load_optimizer_state, state_tensors
from flfast.state.tree import Tree, add, scaled


def server_optimized(algorithm: Algorithm, make_optimizer: Callable[..., Optimizer]) -> Algorithm:
    """Add an optimizer to the server; its state is part of the server state.

    Its gradient is minus the mean of the uploads. Buffers are averaged.

    Args:
        algorithm: must upload changes of weights.
        make_optimizer: parameters -> any torch optimizer that needs no closure.

    Raises:
        ValueError: if it is no function, or the state of the optimizer is not tensors.
        TypeError: if the optimizer cannot step without a closure.
    """
    if not callable(make_optimizer):
        raise ValueError(
            f"algorithm.server_optimizer={make_optimizer}: allowed: a torch optimizer, by "
            f"_target_ and _partial_: true"
        )
    trial = {"w": torch.zeros(1)}
    optimizer_step(make_optimizer, trial, trial, {})

    def server_state(weights: Tree) -> Tree:
        return {**algorithm.server_state(weights), "server_optimizer": {}}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        gradient = scaled(uploads.mean["params"], -1)
        params, state = optimizer_step(
            make_optimizer, server["params"], gradient, server["server_optimizer"]
        )
        return {**add(server, uploads.mean), "params": params, "server_optimizer": state}

    return replace(algorithm, server_state=server_state, server_step=server_step)


def optimizer_step(
    make_optimizer: Callable[..., Optimizer], params: Tree, grads: Tree, state: Tree
) -> tuple[Tree, Tree]:
    """Parameters and optimizer state after a step; the inputs stay unchanged.

    The optimizer must need no closure. Its state is by parameter name, and empty before the first
    step.
    """
    if not params:
        return {}, {}
    copies = {name: nn.Parameter(params[name].to(g.dtype, copy=True)) for name, g in grads.items()}
    for name, p in copies.items():
        p.grad = grads[name]
    optimizer = make_optimizer(list(copies.values()))
    if state:
        load_optimizer_state(optimizer, state, copies)
    optimizer.step()
    option = "algorithm.server_optimizer"
    new_state = {n: state_tensors(optimizer.state[p], option=option) for n, p in copies.items()}
    return {name: p.detach() for name, p in copies.items()}, new_state
