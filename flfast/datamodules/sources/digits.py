"""The handwritten digits that come with scikit-learn: nothing to download.

Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998.
"""

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.transforms import image_transform
from flfast.state.options import BelowOne, Positive


def digits(
    *, test_fraction: BelowOne, mean: list[float], std: list[Positive], seed: int
) -> Examples:
    """1,797 grey images [N, 1, 8, 8] of 10 classes, values 0 to 240 in steps of 15.

    The seed determines the test set.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images = (data.images * 15).astype(np.uint8)  # [N, 8, 8]
    return Examples(
        inputs=torch.from_numpy(images).unsqueeze(1),
        targets=torch.from_numpy(data.target).to(torch.int64),
        num_classes=10,
        transform=image_transform(mean=mean, std=std, channels=1),
        is_test=held_out_test(data.target, test_fraction=test_fraction, seed=seed),
    )
