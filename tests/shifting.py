"""Small images, their division among clients, and shifts of the config's options."""

from pathlib import Path

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from flfast.datamodules.examples import Examples, group_by_client
from flfast.datamodules.transforms import BatchTransform

CONF = Path(__file__).parents[1] / "conf" / "shift"
CLASSES = 5


def make(name, **options):
    return instantiate({**OmegaConf.load(CONF / f"{name}.yaml"), **options})


def images(num=60, *, dtype=torch.uint8, shape=(3, 6, 6)):
    drawn = torch.randint(256, (num, *shape), generator=torch.Generator().manual_seed(0))
    return Examples(
        inputs=drawn.to(dtype) if dtype == torch.uint8 else (drawn / 255).to(dtype),
        targets=torch.arange(num) % CLASSES,
        num_classes=CLASSES,
        input_shape=shape,
        transform=BatchTransform(),
    )


def splits(num_examples, num_clients, rng):
    """Every client has some of each split; a fifth of the examples are nobody's."""
    owned = rng.permutation(num_examples)[: num_examples * 4 // 5]
    parts = np.split(owned, [len(owned) // 2, len(owned) * 3 // 4])
    return {
        split: group_by_client(part, np.arange(len(part)) % num_clients, num_clients)
        for split, part in zip(("train", "val", "test"), parts, strict=True)
    }
