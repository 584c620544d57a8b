"""Synthetic classes for clients of given sizes: a real split's sizes without its data."""

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.transforms import BatchTransform
from flfast.state.options import Count, NonNegativeInt
from flfast.state.randomness import generator


def uneven(
    *,
    train_sizes: list[Count],
    test_sizes: list[NonNegativeInt],
    shape: list[Count],
    num_classes: Count,
    seed: int,
) -> Examples:
    """float32 inputs [N, *shape]: a class's mean plus unit noise; each example has its owner.

    Training examples come first, by client, then the test examples, by client.

    Args:
        train_sizes: training examples of every client.
        test_sizes: test examples of every client.
        shape: of one input, without the batch dimension.
        num_classes: C.
        seed: the run's seed, on which alone the numbers depend.

    Raises:
        ValueError: if the two lists differ in length.
    """
    if len(train_sizes) != len(test_sizes):
        raise ValueError(
            f"data.test_sizes has {len(test_sizes)} entries, data.train_sizes {len(train_sizes)}; "
            "both need one a client"
        )
    rng = generator(seed, "uneven data")
    sizes = np.array([*train_sizes, *test_sizes])
    labels = rng.integers(num_classes, size=sizes.sum())
    inputs = rng.standard_normal((len(labels), *shape), dtype=np.float32)
    inputs += rng.standard_normal((num_classes, *shape), dtype=np.float32)[labels]
    return Examples(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(labels),
        num_classes=num_classes,
        input_shape=tuple(shape),
        transform=BatchTransform(),
        is_test=np.arange(len(labels)) >= sum(train_sizes),
        owner=np.repeat(np.arange(len(sizes)) % len(train_sizes), sizes),
    )
