"""MNIST and two datasets of the same format, Fashion-MNIST and KMNIST.

LeCun et al., Gradient-based learning applied to document recognition, 1998; Xiao et al.,
Fashion-MNIST, 2017 (arXiv:1708.07747); Clanuwat et al., Deep Learning for Classical Japanese
Literature, 2018 (arXiv:1812.01718).
"""

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.bounds import open_gzip
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import Part, official_examples
from flfast.datamodules.transforms import image_transform
from flfast.state.options import Positive
from flfast.state.regular_file import require_file


def mnist(
    *,
    name: Literal["MNIST", "FashionMNIST", "KMNIST"],
    root: str,
    download: bool,
    mean: list[float],
    std: list[Positive],
) -> Examples:
    """70,000 grey images [N, 1, 28, 28] of 10 classes, the last 10,000 for testing.

    Files may have the ending `.gz`.

    Raises:
        ValueError: if the files cannot be read.
    """

    def read(part: Part) -> tuple[Tensor, Tensor]:
        if download:
            from torchvision import datasets

            getattr(datasets, name)(root, download=True)
        return read_idx(Path(root, name, "raw"), "train" if part == "train" else "t10k")

    transform = image_transform(mean=mean, std=std, channels=1)
    files = f"{name}/raw/*-ubyte"
    return official_examples(read, files=files, root=root, num_classes=10, transform=transform)


def read_idx(folder: Path, start: str) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 1, H, W] and labels int64 [N] of the two files that begin with `start`.

    Raises:
        ValueError: if a file is damaged, or they do not have equal numbers.
        OSError: if one cannot be read.
    """
    folder = folder.expanduser()
    images = _read(folder / f"{start}-images-idx3-ubyte", 3)
    labels = _read(folder / f"{start}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise ValueError(f"{folder / start}-*: {len(images)} images, but {len(labels)} labels")
    return images.unsqueeze(1), labels.long()


def _read(path: Path, ndim: int) -> Tensor:
    packed = path.with_name(f"{path.name}.gz")
    path = packed if packed.is_file() and not path.is_file() else path
    require_file(path)
    with open_gzip(path) if path is packed else path.open("rb") as stream:
        content = stream.read()
    start = 4 + 4 * ndim
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    kind = content[:4] == bytes([0, 0, 8, ndim])
    if not kind or not all(shape) or len(content) != start + math.prod(shape):
        raise ValueError(
            f"{path} is damaged: it has {len(content)} bytes, begins with "
            f"{content[:4].hex(' ')}, and its shape would be {shape}; allowed: 00 00 08 0{ndim}, "
            "the shape, and a byte for each value"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())
