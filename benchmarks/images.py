"""Synthetic colour images that are stored and transformed as CIFAR-10 is."""

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.transforms import image_transform
from flfast.state.options import Count, NonNegativeInt
from flfast.state.randomness import generator

# Of CIFAR-10's pixels scaled to [0, 1], as in conf/data/cifar10.yaml.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def images(  # noqa: PLR0913 - one parameter an option
    *,
    num_examples: Count,
    num_test: NonNegativeInt,
    num_clients: Count,
    shape: list[Count],
    num_classes: Count,
    random_crop: NonNegativeInt,
    random_flip: bool,
    seed: int,
) -> Examples:
    """uint8 images [num_examples + num_test, 3, H, W], the last num_test for testing.

    Args:
        num_examples: examples to train on, all clients together.
        num_test: test examples, all clients together.
        num_clients: natural owners of the examples.
        shape: of one image, without the batch dimension.
        num_classes: C.
        random_crop: pixels of padding before a random crop in training; 0 is off.
        random_flip: mirror half of the training images.
        seed: the run's seed, on which alone the numbers depend.
    """
    rng = generator(seed, "synthetic images")
    num = num_examples + num_test
    labels = rng.integers(num_classes, size=num)
    # Half of the brightness is the class's, half is noise, so that nothing has to be clipped.
    pixels = rng.integers(128, size=(num, *shape), dtype=np.uint8)
    pixels += rng.integers(128, size=(num_classes, *shape), dtype=np.uint8)[labels]
    transform = image_transform(
        mean=MEAN, std=STD, channels=shape[0], random_crop=random_crop, random_flip=random_flip
    )
    position = np.concatenate([np.arange(num_examples), np.arange(num_test)])
    return Examples(
        inputs=torch.from_numpy(pixels),
        targets=torch.from_numpy(labels),
        num_classes=num_classes,
        input_shape=tuple(shape),
        transform=transform,
        is_test=np.arange(num) >= num_examples if num_test else None,
        owner=position % num_clients,
    )
