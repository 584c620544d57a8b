"""Synthetic data: one Gaussian cluster per class, for any shape and number of clients."""

import math

import numpy as np
import psutil
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.transforms import BatchTransform
from flfast.options import Count, NonNegative, NonNegativeInt
from flfast.randomness import generator


def synthetic(  # noqa: PLR0913 - one parameter an option
    *,
    num_examples: Count,
    num_test: NonNegativeInt,
    shape: list[Count],
    num_classes: Count,
    num_clients: Count,
    noise: NonNegative,
    seed: int,
) -> Examples:
    """float32 inputs [num_examples + num_test, *shape], the last num_test for testing.

    Labels are drawn uniformly. An input is the mean of its class, which is standard normal, plus
    Gaussian noise. Training example i and test example i belong to client i % num_clients.

    Args:
        num_examples: training examples of all clients.
        num_test: test examples of all clients; 0 for no test set.
        shape: shape of one input, without the batch dimension.
        num_classes: C.
        num_clients: clients of the dataset's own partition.
        noise: standard deviation around the class mean.
        seed: the run's seed.

    Raises:
        ValueError: if a client had no training example, or the data do not fit in memory.
    """
    _check_options(num_examples, num_test, num_classes, num_clients, shape)
    num = num_examples + num_test
    inputs, labels = _draw(num, num_classes, math.prod(shape), noise=noise, seed=seed)
    position = np.concatenate([np.arange(num_examples), np.arange(num_test)])
    return Examples(
        inputs=torch.from_numpy(inputs).view(num, *shape),
        targets=torch.from_numpy(labels),
        num_classes=num_classes,
        input_shape=tuple(shape),
        transform=BatchTransform(),
        is_test=np.arange(num) >= num_examples if num_test else None,
        owner=position % num_clients,
    )


def _check_options(
    num_examples: int, num_test: int, num_classes: int, num_clients: int, shape: list[int]
) -> None:
    if num_examples < num_clients:
        raise ValueError(
            f"data.num_examples={num_examples} data.num_clients={num_clients}: each client needs "
            "an example; raise num_examples or lower num_clients"
        )
    if not len(shape):
        raise ValueError("data.shape=[] must name at least one dimension, such as [32]")
    needed = 4 * (num_examples + num_test + num_classes) * math.prod(shape)
    memory = psutil.virtual_memory().total
    if needed > memory:
        raise ValueError(
            f"data.num_examples={num_examples} data.num_test={num_test} data.num_classes="
            f"{num_classes} data.shape={list(shape)} need {needed / 1e9:.0f} GB of memory; "
            f"allowed: up to {memory / 1e9:.0f} GB"
        )


def _draw(
    num: int, num_classes: int, size: int, *, noise: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs float32 [num, size] and labels int64 [num]."""
    rng = generator(seed, "synthetic data")
    means = rng.standard_normal((num_classes, size), dtype=np.float32)
    labels = rng.integers(num_classes, size=num)
    inputs = rng.standard_normal((num, size), dtype=np.float32)
    inputs *= np.float32(noise)
    inputs += means[labels]
    return inputs, labels
