"""FEMNIST and CelebA of LEAF, by writer and by celebrity.

Caldas et al., LEAF: A Benchmark for Federated Settings, 2018 (arXiv:1812.01097).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.source import ImageSource
from flfast.state.regular_file import reading
from flfast.zoo.datamodules.sources.leaf_files import LeafUser, read_users

_NUM_CLASSES = {"femnist": 62, "celeba": 2}


@dataclass(frozen=True, kw_only=True)
class Leaf(ImageSource):
    """Images of LEAF's users, who are the natural clients in the order of their names.

    FEMNIST has grey images [N, 1, 28, 28] of 62 digits and letters, CelebA faces [N, 3,
    image_size, image_size] that smile (1) or do not. If some users are only in `test/`, as after
    LEAF's `-t user`, all of `test/` is the central test set.
    """

    dataset: Literal["femnist", "celeba"]
    root: str
    images: str | None

    def load(self) -> Examples:
        """All images, by user."""
        if self.dataset == "femnist":
            parts, fields = _read(self.root, self.dataset, _pixels)
            fields |= {"inputs": _joined(parts), "transform": self.transform(channels=1)}
        else:
            parts, fields = _read(self.root, self.dataset, _names)
            fields |= self._faces([name for part in parts for name in part])
        with reading(f"data.root={self.root} data.dataset={self.dataset}"):
            return Examples(num_classes=_NUM_CLASSES[self.dataset], **fields)

    def _faces(self, names: list[str]) -> dict[str, Any]:
        folder = Path(self.images or Path(self.root) / "raw" / "img_align_celeba").expanduser()
        if not (folder / names[0]).is_file():
            raise ValueError(
                f"data.images={self.images}: there is no {folder / names[0]}; point data.images "
                "to the folder of CelebA's images, img_align_celeba/"
            )
        return self.read_images([folder / name for name in names], channels=3)


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
