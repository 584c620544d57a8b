"""EMNIST: handwritten digits and letters.

Cohen et al., EMNIST: an extension of MNIST to handwritten letters, 2017 (arXiv:1702.05373).
"""

from pathlib import Path
from typing import Literal

from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import Part, official_examples
from flfast.datamodules.sources.mnist import read_idx
from flfast.datamodules.transforms import image_transform
from flfast.state.options import Positive

_NUM_CLASSES = {
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}


def emnist(
    *,
    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"],
    root: str,
    download: bool,
    mean: list[float],
    std: list[Positive],
) -> Examples:
    """Upright grey images [N, 1, 28, 28] with labels from 0, training then test set.

    Raises:
        ValueError: if the files cannot be read.
    """
    # In the files, labels of letters start at 1.
    first_label = 1 if split == "letters" else 0

    def read(part: Part) -> tuple[Tensor, Tensor]:
        if download:
            from torchvision.datasets import EMNIST

            EMNIST(root, split=split, download=True)
        images, labels = read_idx(Path(root, "EMNIST", "raw"), f"emnist-{split}-{part}")
        # In the files, images are transposed.
        return images.transpose(2, 3), labels - first_label

    return official_examples(
        read,
        files=f"EMNIST/raw/emnist-{split}-*-ubyte",
        root=root,
        num_classes=_NUM_CLASSES[split],
        transform=image_transform(mean=mean, std=std, channels=1),
    )
