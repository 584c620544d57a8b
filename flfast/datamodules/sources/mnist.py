"""MNIST and two datasets of the same format, Fashion-MNIST and KMNIST.

LeCun et al., Gradient-based learning applied to document recognition, 1998; Xiao et al.,
Fashion-MNIST, 2017 (arXiv:1708.07747); Clanuwat et al., Deep Learning for Classical Japanese
Literature, 2018 (arXiv:1812.01718).
"""

from pathlib import Path
from typing import Literal

from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import Part, official_examples
from flfast.datamodules.sources.idx_files import check_idx, read_compressed
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
