"""The handwritten digits that come with scikit-learn: nothing to download.

Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
    values, labels = _digits()
    images = (values * 15).astype(np.uint8).reshape(-1, 8, 8)
    return Examples(
        inputs=torch.from_numpy(images).unsqueeze(1),
        targets=torch.from_numpy(labels).to(torch.int64),
        num_classes=10,
        transform=image_transform(mean=mean, std=std, channels=1),
        is_test=held_out_test(labels, test_fraction=test_fraction, seed=seed),
    )


def _digits() -> tuple[Any, Any]:
    """Values [N, 64] from 0 to 16, and labels [N].

    They are read from scikit-learn's file where it lies as always: the package imports scipy.stats
    and pandas, for as long as three rounds.
    """
    spec = find_spec("sklearn")
    folders = (spec and spec.submodule_search_locations) or []
    files = [Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders]
    if any(map(Path.is_file, files)):
        rows = np.loadtxt(next(filter(Path.is_file, files)), delimiter=",")
        return rows[:, :-1], rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)
