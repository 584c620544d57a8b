"""SGD of the server on what clients uploaded, such as class means."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from flfast.state.tree import Tree


@torch.enable_grad()
def descended(
    params: Tree, loss: Callable[[Tree, Tensor], Tensor], steps: Iterable[Tensor], *, lr: float
) -> Tree:
    """Parameters by name after one step of SGD on the loss [] of each batch; the given ones stay.

    `loss` is (parameters, places of the batch's examples) -> mean over these, and `steps` are the
    places, such as those of `batches`.

    >>> def loss(params, places):
    ...     return params["w"] * places.sum()
    >>> descended({"w": torch.tensor(1.0)}, loss, [torch.tensor([1]), torch.tensor([2])], lr=0.1)
    {'w': tensor(0.7000)}
    """
    trained = {name: p.clone().requires_grad_() for name, p in params.items()}
    optimizer = torch.optim.SGD(trained.values(), lr=lr)
    for places in steps:
        optimizer.zero_grad()
        loss(trained, places).backward()
        optimizer.step()
    return {name: p.detach() for name, p in trained.items()}


def batches(num: int, size: int, epochs: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Places of the examples of each step, int64 [at most size], in a new order in each epoch."""
    for _ in range(epochs):
        yield from torch.randperm(num, generator=rng).split(size)
