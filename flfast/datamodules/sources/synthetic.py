"""Synthetic classes: Gaussian clusters of any shape, for any number of clients."""

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

    An input is its class's mean, drawn from a standard normal distribution, plus Gaussian noise;
    classes are drawn uniformly. Training example i belongs to client i % num_clients and so does
    test example i, so that clients differ by at most one example of either kind; with fewer test
    examples than clients, the last clients have none.

    Args:
        num_examples: examples to train on, all clients together.
        num_test: test examples, all clients together; 0 is no test set.
        shape: of one input, without the batch dimension.
        num_classes: C.
        num_clients: natural owners of the examples.
        noise: standard deviation around the class mean.
        seed: the run's seed, on which alone the numbers depend.

    Raises:
        ValueError: if a client would have nothing to train on, shape is empty, or memory is too
            small.
    """
    if num_examples < num_clients:
        raise ValueError(
            f"data.num_examples={num_examples} leaves some of data.num_clients={num_clients} "
            "without an example; raise num_examples or lower num_clients"
        )
    if not len(shape):
        raise ValueError("data.shape=[] must name at least one dimension, such as [32]")
    num, size = num_examples + num_test, math.prod(shape)
    needed, memory = 4 * (num + num_classes) * size, psutil.virtual_memory().total
    if needed > memory:
        raise ValueError(
            f"data.num_examples={num_examples} data.num_test={num_test} data.num_classes="
            f"{num_classes} data.shape={list(shape)} need {needed / 1e9:.0f} GB of memory; "
            f"allowed: up to {memory / 1e9:.0f} GB"
        )
    rng = generator(seed, "synthetic data")
    means = rng.standard_normal((num_classes, size), dtype=np.float32)
    labels = rng.integers(num_classes, size=num)
    inputs = rng.standard_normal((num, size), dtype=np.float32)
    inputs *= np.float32(noise)
    inputs += means[labels]
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
