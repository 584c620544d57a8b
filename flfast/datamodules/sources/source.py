"""Data sources: functions that return `Examples`, or records of options that load them.

A record has its options as fields, beside `seed`, `task` and `kept` if it needs them; `kept` is
the preprocessing of a trained model, None in training. Sources with options in common inherit
them, so that a source names only what is its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.decoded_images import load_images
from flfast.datamodules.sources.image_files import ImageFiles
from flfast.datamodules.transforms import BatchTransform, image_transform
from flfast.state.injection import call_with
from flfast.state.options import Count, NonNegativeInt, Positive


class RawInputs(NamedTuple):
    """Inputs of N examples without targets, prepared for a trained model.

    Attributes:
        inputs: as of `Examples`.
        about: what says which example it is, by name of the column, each [N].
    """

    inputs: Tensor | Dataset[Tensor]
    about: dict[str, np.ndarray]


class DataSource:
    """A data source as a record of its options, which `conf/data` explains."""

    def raw_inputs(self, key: str | None) -> RawInputs:
        """Inputs of examples whose targets are not known; `key` names a column to carry along.

        Raises:
            ValueError: naming key and value, or if the source always has targets.
        """
        raise ValueError(
            "these data cannot be read without targets; allowed: data=table, npz or image_folder, "
            "or flfast.evaluate"
        )

    @staticmethod
    def refuse_key(key: str | None) -> None:
        """Refuse a column to carry along, where there are no columns."""
        if key is not None:
            raise ValueError(f"key={key} names a column of a table; allowed with other data: none")

    def load(self) -> Examples:
        """All examples.

        Raises:
            ValueError: naming key and value, if files are missing, broken, or do not fit together,
                or an option does not fit them.
        """
        raise NotImplementedError


def examples_from(source: Callable[..., Any], **offers: Any) -> Any:
    """What a source returns: `Examples`, unless a user errs. It gets the offers it asks for."""
    made = call_with(source, **offers)
    return made.load() if isinstance(made, DataSource) else made


@dataclass(frozen=True, kw_only=True)
class PixelSource(DataSource):
    """Options of images that are normalised, and augmented in training."""

    mean: list[float]
    std: list[Positive]
    random_crop: NonNegativeInt
    random_flip: bool

    def transform(self, channels: int) -> BatchTransform:
        """Normalisation and augmentation of batches; raises as `image_transform`."""
        return image_transform(
            mean=self.mean,
            std=self.std,
            channels=channels,
            random_crop=self.random_crop,
            random_flip=self.random_flip,
        )


@dataclass(frozen=True, kw_only=True)
class ImageSource(PixelSource):
    """Options of images in files."""

    image_size: Count | None
    in_memory: bool
    cache: str | None

    def read_images(self, paths: Sequence[str | Path], channels: Literal[1, 3]) -> dict[str, Any]:
        """`inputs` and `transform` of `Examples`; raises as `load_images`."""
        transform = self.transform(channels)
        files = ImageFiles([*map(str, paths)], channels=channels, image_size=self.image_size)
        inputs = load_images(files, in_memory=self.in_memory, cache=self.cache)
        return {"inputs": inputs, "transform": transform}
