"""UCI HAR: six activities of 30 people, from the sensors of a phone.

Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, 2013.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.value_names import number_clients
from flfast.zoo.datamodules.sources.pamap2 import read_number_table

SIGNALS = [
    f"{sensor}_{axis}" for sensor in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
]
"""Channels: acceleration without gravity (g), angular velocity (rad/s), acceleration (g)."""

_STEPS = 128
_NUM_CLASSES = 6


def har(*, root: str, test_subjects: Literal["published", "none"]) -> Examples:
    """10,299 windows float32 [N, 9, 128] of 2.56 s at 50 Hz; subjects are the natural clients.

    The published test subjects are 9, which leaves 21 clients; without any, all 30 are clients.

    Raises:
        ValueError: if files are missing or broken, or do not fit together.
    """
    folder = Path(root).expanduser() / "UCI HAR Dataset"
    parts = [_read_part(folder, part, root) for part in ("train", "test")]
    inputs, labels, subjects = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    is_test = np.arange(len(labels)) >= len(parts[0][1])
    tests = is_test if test_subjects == "published" else None
    clients = number_clients(subjects, tests, where=f"data.root={root}: subjects")
    return Examples(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(labels - 1),
        num_classes=_NUM_CLASSES,
        is_test=tests,
        **clients._asdict(),
    )


def _read_part(folder: Path, part: str, root: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs float32 [n, 9, 128], labels int64 [n] from 1, and subjects int64 [n]."""
    labels = _numbers(folder / part / f"y_{part}.txt", root)[:, 0].astype(np.int64)
    subjects = _numbers(folder / part / f"subject_{part}.txt", root)[:, 0].astype(np.int64)
    inputs = np.empty((len(labels), len(SIGNALS), _STEPS), dtype=np.float32)
    if not (len(subjects) == len(labels) and labels.min() >= 1 and labels.max() <= _NUM_CLASSES):
        raise ValueError(
            f"{folder / part}: y_{part}.txt has {len(labels)} activities from {labels.min()} to "
            f"{labels.max()}, subject_{part}.txt {len(subjects)} subjects; "
            f"allowed: equal numbers, activities from 1 to {_NUM_CLASSES}"
        )
    for channel, signal in enumerate(SIGNALS):
        path = folder / part / "Inertial Signals" / f"{signal}_{part}.txt"
        values = _numbers(path, root)
        if values.shape != (len(labels), _STEPS):
            raise ValueError(
                f"{path} has {values.shape[0]} rows of {values.shape[1]} numbers; allowed: "
                f"{len(labels)} rows, as y_{part}.txt, of {_STEPS}"
            )
        inputs[:, channel] = values
    return inputs, labels, subjects


def _numbers(path: Path, root: str) -> np.ndarray:
    """A text file of numbers, float32 [rows, columns]."""
    if not path.is_file():
        raise ValueError(
            f"data.root={root} lacks {path}; point data.root to the folder with UCI HAR Dataset/, "
            "which has train/Inertial Signals/*.txt, y_train.txt, subject_train.txt, and test/"
        )
    values = read_number_table(path)
    if not values.size:
        raise ValueError(f"{path} is empty")
    return values
