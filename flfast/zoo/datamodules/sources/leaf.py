"""FEMNIST and CelebA of LEAF, by writer and by celebrity.

Caldas et al., LEAF: A Benchmark for Federated Settings, 2018 (arXiv:1812.01097).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.decoded_images import load_images
from flfast.datamodules.transforms import image_transform
from flfast.state.options import Count, NonNegativeInt, Positive
from flfast.state.regular_file import reading
from flfast.zoo.datamodules.sources.leaf_files import LeafUser, read_users

_NUM_CLASSES = {"femnist": 62, "celeba": 2}


def leaf(  # noqa: PLR0913 - one parameter an option
    *,
    dataset: Literal["femnist", "celeba"],
    root: str,
    images: str | None,
    image_size: Count | None,
    in_memory: bool,
    cache: str | None,
    mean: list[float],
    std: list[Positive],
    random_crop: NonNegativeInt,
    random_flip: bool,
) -> Examples:
    """Images of LEAF's users, who are the natural clients in the order of their names.

    FEMNIST has grey images [N, 1, 28, 28] of 62 digits and letters, CelebA faces [N, 3,
    image_size, image_size] that smile (1) or do not. If some users are only in `test/`, as after
    LEAF's `-t user`, all of `test/` is the central test set.

    Raises:
        ValueError: if files are missing, broken, or of another dataset.
    """
    channels: Literal[1, 3] = 1 if dataset == "femnist" else 3
    transform = image_transform(
        mean=mean, std=std, channels=channels, random_crop=random_crop, random_flip=random_flip
    )
    if dataset == "femnist":
        parts, fields = _read(root, dataset, _pixels)
        inputs: Tensor | Dataset[Tensor] = _joined(parts)
    else:
        folder = Path(images or Path(root) / "raw" / "img_align_celeba").expanduser()
        parts, fields = _read(root, dataset, _names)
        paths = [str(folder / name) for part in parts for name in part]
        if not Path(paths[0]).is_file():
            raise ValueError(
                f"data.images={images}: there is no {paths[0]}; point data.images to the folder "
                "of CelebA's images, img_align_celeba/"
            )
        inputs = load_images(
            paths, channels=channels, image_size=image_size, in_memory=in_memory, cache=cache
        )
    with reading(f"data.root={root} data.dataset={dataset}"):
        num_classes = _NUM_CLASSES[dataset]
        return Examples(inputs=inputs, num_classes=num_classes, transform=transform, **fields)


def _read(root: str, dataset: str, convert: Callable[[list[Any]], Any]) -> Any:
    def read(user: LeafUser) -> tuple[Any, np.ndarray]:
        what = f"user {user.name!r} has no examples of data.dataset={dataset}"
        with reading(f"{user.path}: {what}", TypeError):
            return convert(user.x), _labels(user)

    return read_users(root, read, lack=": no user has an example")


def _labels(user: LeafUser) -> np.ndarray:
    labels = np.asarray(user.y)
    if labels.ndim != 1 or labels.dtype.kind != "i":
        raise ValueError("y must be integers")
    return labels.astype(np.int64)


def _names(x: list[Any]) -> list[str]:
    if not all(isinstance(name, str) and name == Path(name).name for name in x):
        raise ValueError("x must be file names")
    return x


def _pixels(x: list[Any]) -> np.ndarray:
    """Grey images [n, 1, 28, 28]: uint8, as LEAF divided it by 255, or else float32."""
    values = np.asarray(x, dtype=np.float32)
    if values.shape[1:] != (784,) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError("x must be lists of 784 numbers in [0, 1]")
    levels = np.rint(values * 255)
    exact = np.abs(levels / 255 - values).max() < 1e-6
    return (levels.astype(np.uint8) if exact else values).reshape(-1, 1, 28, 28)


def _joined(parts: Sequence[np.ndarray]) -> Tensor:
    if len({part.dtype for part in parts}) > 1:
        parts = [np.float32(part / 255) if part.dtype == np.uint8 else part for part in parts]
    return torch.from_numpy(np.concatenate(parts))
