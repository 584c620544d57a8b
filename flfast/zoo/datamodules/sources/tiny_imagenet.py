"""Tiny ImageNet: 200 classes of ImageNet in 64 x 64 pixels.

Le and Yang, Tiny ImageNet Visual Recognition Challenge, Stanford CS 231N, 2015.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.image_folder import list_class_folders
from flfast.datamodules.sources.source import ImageSource
from flfast.state.regular_file import read_text, reading


@dataclass(frozen=True, kw_only=True)
class TinyImagenet(ImageSource):
    """100,000 colour images for training, and the 10,000 of `val/` for testing.

    Classes are numbered in the order of their WordNet ids. The images of `test/` have no labels
    and are not read. Decoded images take 1.4 GB.
    """

    root: str

    def load(self) -> Examples:
        """All images: those of `train/`, then those of `val/`."""
        folder = Path(self.root).expanduser() / "tiny-imagenet-200"
        wanted = "tiny-imagenet-200/ with train/WNID/images/ and val/val_annotations.txt"
        with reading(f"data.root={self.root} has no readable {wanted}"):
            train, wnids = list_class_folders(folder / "train")
            samples = [*train, *_test_files(folder, wnids)]
        return Examples(
            **self.read_images([path for path, _ in samples], channels=3),
            targets=torch.tensor([label for _, label in samples]),
            num_classes=len(wnids),
            is_test=np.arange(len(samples)) >= len(train),
        )


def _test_files(folder: Path, wnids: list[str]) -> list[tuple[str, int]]:
    """Files in the order of val_annotations.txt: a name, a class and a box in each line."""
    numbers = {wnid: label for label, wnid in enumerate(wnids)}
    path = folder / "val" / "val_annotations.txt"
    found = []
    for line, text in enumerate(read_text(path).splitlines(), start=1):
        name, *rest = text.split("\t")
        if not rest or rest[0] not in numbers:
            raise ValueError(
                f"{path}, line {line}: {text!r}; allowed: a file name, a tab, a folder of train/"
            )
        found.append((str(folder / "val" / "images" / name), numbers[rest[0]]))
    return found
