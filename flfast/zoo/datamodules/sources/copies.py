"""A dataset several times, each time divided among other clients.

For clusters of clients that each have a whole dataset in a form of their own, such as MNIST
rotated by an angle: Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020, section 6, with `shift`.
https://arxiv.org/abs/2006.04088
"""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.source import examples_from
from flfast.state.options import Count
from flfast.state.randomness import generator


def copies(
    *, source: Callable[..., Examples], num_copies: Count, num_clients: Count, seed: int
) -> Examples:
    """All examples of a dataset `num_copies` times, at random among clients; with owners.

    Copy c is divided evenly among the clients c, c + num_copies, c + 2 * num_copies, ..., so
    that `shift.assignment=cyclic` puts them into one cluster. So is its test set: these are
    the clients' own test sets, and there is no central one.

    Raises:
        ValueError: if the dataset cannot be read, or a client would have no training example.
    """
    try:
        one = examples_from(source, seed=seed)
    except ValueError as error:
        # A source names its options as `data.root`, which is `data.source.root` here.
        raise ValueError(re.sub(r"\bdata\.(?=\w)", "data.source.", str(error))) from error
    is_test = np.zeros(len(one.targets), bool) if one.is_test is None else one.is_test
    fewest = int((~is_test).sum()) // -(-num_clients // num_copies)
    if num_clients < num_copies or not fewest:
        raise ValueError(
            f"data.num_clients={num_clients} with data.num_copies={num_copies}; allowed: "
            f"{num_copies} to {num_copies * int((~is_test).sum())}"
        )
    copied = one.inputs.nbytes if isinstance(one.inputs, Tensor) else 0
    needed = num_copies * (copied + one.targets.nbytes + 8 * len(is_test))
    require_memory(needed, f"data.num_copies={num_copies}")
    owner = np.empty((num_copies, len(is_test)), dtype=np.int64)
    for number, own in enumerate(owner):
        clients = np.arange(number, num_clients, num_copies)
        rng = generator(seed, "copies", number)
        for part in (~is_test, is_test):
            order = rng.permutation(np.flatnonzero(part))
            own[order] = clients[np.arange(len(order)) % len(clients)]
    inputs = one.inputs
    return replace(
        one,
        inputs=_repeated(inputs, num_copies)
        if isinstance(inputs, Tensor)
        else ConcatDataset([inputs] * num_copies),
        targets=_repeated(one.targets, num_copies),
        labels=None if one.labels is None else _repeated(one.labels, num_copies),
        is_test=None if one.is_test is None else np.tile(is_test, num_copies),
        owner=owner.ravel(),
        client_names=(),  # the source's own clients are gone
    )


def _repeated(values: Tensor, times: int) -> Tensor:
    return torch.cat([values] * times)
