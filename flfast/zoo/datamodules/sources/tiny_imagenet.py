"""Tiny ImageNet: 200 classes of ImageNet in 64 x 64 pixels.

Le and Yang, Tiny ImageNet Visual Recognition Challenge, Stanford CS 231N, 2015.
"""

from pathlib import Path

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.decoded_images import load_images
from flfast.datamodules.sources.image_folder import list_class_folders
from flfast.datamodules.transforms import image_transform
from flfast.state.options import Count, NonNegativeInt, Positive
from flfast.state.regular_file import read_text, reading


def tiny_imagenet(  # noqa: PLR0913 - one parameter an option
    *,
    root: str,
    image_size: Count | None,
    in_memory: bool,
    cache: str | None,
    mean: list[float],
    std: list[Positive],
    random_crop: NonNegativeInt,
    random_flip: bool,
) -> Examples:
    """100,000 colour images for training, and the 10,000 of `val/` for testing.

    Classes are numbered in the order of their WordNet ids. The images of `test/` have no labels
    and are not read. Decoded images take 1.4 GB.

    Raises:
        ValueError: if files are missing or broken.
    """
    transform = image_transform(
        mean=mean, std=std, channels=3, random_crop=random_crop, random_flip=random_flip
    )
    folder = Path(root).expanduser() / "tiny-imagenet-200"
    wanted = "tiny-imagenet-200/ with train/WNID/images/ and val/val_annotations.txt"
    with reading(f"data.root={root} has no readable {wanted}"):
        train, wnids = list_class_folders(folder / "train")
        test = _test_files(folder, wnids)
    samples = [*train, *test]
    paths = [path for path, _ in samples]
    inputs = load_images(
        paths, channels=3, image_size=image_size, in_memory=in_memory, cache=cache
    )
    return Examples(
        inputs=inputs,
        targets=torch.tensor([label for _, label in samples]),
        num_classes=len(wnids),
        transform=transform,
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
