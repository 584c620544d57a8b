"""MNIST and two datasets of the same format, Fashion-MNIST and KMNIST.

LeCun et al., Gradient-based learning applied to document recognition, 1998; Xiao et al.,
Fashion-MNIST, 2017 (arXiv:1708.07747); Clanuwat et al., Deep Learning for Classical Japanese
Literature, 2018 (arXiv:1812.01718).
"""

import math
import struct
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
    from torchvision import datasets

    def read(part: Part) -> tuple[Tensor, Tensor]:
        stem = Path(root) / name / "raw" / ("train" if part == "train" else "t10k")
        files = Path(f"{stem}-images-idx3-ubyte"), Path(f"{stem}-labels-idx1-ubyte")
        if not download and (found := read_compressed(*files)) is not None:
            return found[0].unsqueeze(1), found[1]
        check_idx(*files)
        data = getattr(datasets, name)(root, train=part == "train", download=download)
        return data.data.unsqueeze(1), data.targets

    return official_examples(
        read,
        files=f"{name}/raw/*-ubyte",
        root=root,
        num_classes=10,
        transform=image_transform(mean=mean, std=std, channels=1),
    )


_HEADER = ">BBBB"
_UINT8 = 8


def check_idx(images: Path, labels: Path) -> None:
    """Check headers and sizes of two uncompressed files; missing files are accepted.

    Images are uint8 [N, H, W], labels uint8 [N].

    Raises:
        ValueError: if a file is damaged; names the file and the problem.
    """
    shapes = [_shape(path, ndim) for path, ndim in ((images, 3), (labels, 1)) if path.is_file()]
    counts = [shape[0] for shape in shapes]
    if len(set(counts)) > 1:
        raise ValueError(f"{images} has {counts[0]} images, but {labels} {counts[1]} labels")


def read_compressed(images: Path, labels: Path) -> tuple[Tensor, Tensor] | None:
    """Images uint8 [N, H, W] and labels int64 [N] of files as they are published, with `.gz`.

    Paths are given without `.gz`.

    Returns:
        None if one of the files is there without `.gz`, or not at all.

    Raises:
        ValueError: if a file is damaged.
        OSError: if it is not compressed by gzip.
    """
    packed = [path.with_name(f"{path.name}.gz") for path in (images, labels)]
    if any(path.is_file() for path in (images, labels)) or not all(p.is_file() for p in packed):
        return None
    pixels, classes = (_unpacked(path, ndim) for path, ndim in zip(packed, (3, 1), strict=True))
    if len(pixels) != len(classes):
        raise ValueError(f"{packed[0]} has {len(pixels)} images, but {packed[1]} {len(classes)}")
    return pixels, classes.long()


def _unpacked(path: Path, ndim: int) -> Tensor:
    with open_gzip(path) as stream:
        content = stream.read()
    shape = _checked(path, content, len(content), ndim)
    values = np.frombuffer(content, np.uint8, offset=len(content) - math.prod(shape))
    return torch.from_numpy(values.reshape(shape).copy())


def _shape(path: Path, ndim: int) -> tuple[int, ...]:
    with path.open("rb") as stream:
        return _checked(path, stream.read(_header_size(ndim)), path.stat().st_size, ndim)


def _header_size(ndim: int) -> int:
    return struct.calcsize(_HEADER) + 4 * ndim


def _checked(path: Path, start: bytes, found: int, ndim: int) -> tuple[int, ...]:
    """The shape of a file that begins with `start` and has `found` bytes."""
    header = _header_size(ndim)
    if len(start) < header:
        raise ValueError(
            f"{path} is truncated: it has {len(start)} bytes, its header alone has {header}"
        )
    zero, empty, kind, dims = struct.unpack_from(_HEADER, start)
    if (zero, empty, kind, dims) != (0, 0, _UINT8, ndim):
        raise ValueError(
            f"{path} begins with {start[:4].hex(' ')}, expected 00 00 08 0{ndim}: an IDX file of "
            f"bytes in {ndim} dimensions"
        )
    shape = struct.unpack_from(f">{ndim}I", start, struct.calcsize(_HEADER))
    expected = header + math.prod(shape)
    if found != expected:
        raise ValueError(f"{path} has {found} bytes, its shape {list(shape)} needs {expected}")
    if not found - header:
        raise ValueError(f"{path} is empty: its shape is {list(shape)}")
    return shape
