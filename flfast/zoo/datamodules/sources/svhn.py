"""SVHN: digits of house numbers from street views.

Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, 2011.
"""

import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import Part, official_examples
from flfast.datamodules.transforms import image_transform
from flfast.state.options import NonNegativeInt, Positive
from flfast.state.regular_file import reading


def svhn(
    *,
    root: str,
    download: bool,
    mean: list[float],
    std: list[Positive],
    random_crop: NonNegativeInt,
    random_flip: bool,
) -> Examples:
    """99,289 colour images [N, 3, 32, 32] of 10 digits, the last 26,032 for testing.

    Raises:
        ValueError: if the files cannot be read.
    """
    from torchvision.datasets import SVHN

    def read(part: Part) -> tuple[Tensor, Tensor]:
        with reading(f"{part}_32x32.mat", RuntimeError):
            data = SVHN(root, split=part, download=download)
        # The files are in Fortran order, in which torch.cat would be slow.
        return torch.from_numpy(data.data).contiguous(), torch.from_numpy(data.labels)

    transform = image_transform(
        mean=mean, std=std, channels=3, random_crop=random_crop, random_flip=random_flip
    )
    files = "train_32x32.mat and test_32x32.mat"
    return official_examples(read, files=files, root=root, num_classes=10, transform=transform)
