"""CIFAR-10 and CIFAR-100.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import pickle
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import Part, official_examples
from flfast.datamodules.sources.source import PixelSource


@dataclass(frozen=True, kw_only=True)
class _Published(PixelSource):
    """Options of all datasets of this file."""

    root: str
    download: bool

    def _read_all(self, name: str, num_classes: int) -> Examples:
        """The training set, then the test set, of a dataset of torchvision."""
        from torchvision import datasets

        dataset = getattr(datasets, name)
        return official_examples(
            partial(_read, dataset, self.root, download=self.download),
            files=dataset.base_folder,
            root=self.root,
            num_classes=num_classes,
            transform=self.transform(channels=3),
        )


@dataclass(frozen=True, kw_only=True)
class Cifar(_Published):
    """60,000 colour images [N, 3, 32, 32], 10,000 for testing; CIFAR100 has fine classes."""

    name: Literal["CIFAR10", "CIFAR100"]

    def load(self) -> Examples:
        """The training set, then the test set."""
        return self._read_all(self.name, 10 if self.name == "CIFAR10" else 100)


@dataclass(frozen=True, kw_only=True)
class Cifar100(_Published):
    """CIFAR-100 as `Cifar`, with its 100 fine classes or their 20 superclasses."""

    labels: Literal["fine", "coarse"]

    def load(self) -> Examples:
        """The training set, then the test set."""
        examples = self._read_all("CIFAR100", 100)
        if self.labels == "fine":
            return examples
        folder = Path(self.root) / "cifar-100-python"
        coarse = [_coarse_labels(folder / part) for part in ("train", "test")]
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
