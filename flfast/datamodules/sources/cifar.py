"""CIFAR-10 and CIFAR-100.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import Part, official_examples
from flfast.datamodules.transforms import image_transform
from flfast.state.options import NonNegativeInt, Positive


def cifar(  # noqa: PLR0913 - one parameter an option
    *,
    name: Literal["CIFAR10", "CIFAR100"],
    root: str,
    download: bool,
    mean: list[float],
    std: list[Positive],
    random_crop: NonNegativeInt,
    random_flip: bool,
) -> Examples:
    """60,000 colour images [N, 3, 32, 32], the last 10,000 for testing; CIFAR100 has fine classes.

    Raises:
        ValueError: if the files cannot be read.
    """
    from torchvision import datasets

    dataset = getattr(datasets, name)
    return official_examples(
        partial(_read, dataset, root, download=download),
        files=dataset.base_folder,
        root=root,
        num_classes=10 if name == "CIFAR10" else 100,
        transform=image_transform(
            mean=mean, std=std, channels=3, random_crop=random_crop, random_flip=random_flip
        ),
    )


def cifar100(  # noqa: PLR0913 - one parameter an option
    *,
    root: str,
    labels: Literal["fine", "coarse"],
    download: bool,
    mean: list[float],
    std: list[Positive],
    random_crop: NonNegativeInt,
    random_flip: bool,
) -> Examples:
    """CIFAR-100 as `cifar`, with its 100 fine classes or their 20 superclasses.

    Raises:
        ValueError: if the files cannot be read.
    """
    examples = cifar(
        name="CIFAR100",
        root=root,
        download=download,
        mean=mean,
        std=std,
        random_crop=random_crop,
        random_flip=random_flip,
    )
    if labels == "fine":
        return examples
    coarse = [_coarse_labels(Path(root) / "cifar-100-python" / part) for part in ("train", "test")]
    return replace(examples, targets=torch.cat(coarse), num_classes=20)


def _coarse_labels(path: Path) -> Tensor:
    """Superclasses int64 [n] of a file whose checksum torchvision has just compared."""
    with path.open("rb") as file:
        content = pickle.load(file, encoding="latin1")
    return torch.tensor(content["coarse_labels"])


def _read(dataset: Any, root: str, part: Part, *, download: bool) -> tuple[Tensor, Tensor]:
    try:
        data = dataset(root, train=part == "train", download=download)
    except RuntimeError as error:
        damaged = _damaged_files(dataset, Path(root) / dataset.base_folder)
        raise ValueError(f"{', '.join(damaged)}: {error}") from None
    return torch.from_numpy(data.data).permute(0, 3, 1, 2), torch.tensor(data.targets)


def _damaged_files(dataset: Any, folder: Path) -> list[str]:
    """Names of files that are missing or have a wrong checksum."""
    from torchvision.datasets.utils import check_integrity

    published = [*dataset.train_list, *dataset.test_list]
    return [name for name, md5 in published if not check_integrity(folder / name, md5)]
