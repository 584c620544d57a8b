"""SVHN: digits of house numbers from street views.

Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, 2011.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import Part, official_examples
from flfast.datamodules.sources.source import PixelSource
from flfast.state.regular_file import reading


@dataclass(frozen=True, kw_only=True)
class Svhn(PixelSource):
    """99,289 colour images [N, 3, 32, 32] of 10 digits, the last 26,032 for testing."""

    root: str
    download: bool

    def load(self) -> Examples:
        """The training set, then the test set."""
        from torchvision.datasets import SVHN

        def read(part: Part) -> tuple[Tensor, Tensor]:
            with reading(f"{part}_32x32.mat", RuntimeError):
                data = SVHN(self.root, split=part, download=self.download)
            # The files are in Fortran order, in which torch.cat would be slow.
            return torch.from_numpy(data.data).contiguous(), torch.from_numpy(data.labels)

        transform, files = self.transform(channels=3), "train_32x32.mat and test_32x32.mat"
        return official_examples(
            read, files=files, root=self.root, num_classes=10, transform=transform
        )
