"""PAMAP2: twelve activities of nine people, from sensors at wrist, chest and ankle.

Reiss and Stricker, Introducing a New Benchmarked Dataset for Activity Monitoring, 2012.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.value_names import number_clients
from flfast.state.options import BelowOne, Count, Positive
from flfast.state.regular_file import reading, require_file

ACTIVITIES = (1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 24)
"""Ids of the protocol's activities, in the order of the classes; 0 is between activities."""

_NUM_COLUMNS = 54
_ACTIVITY = 1
# Each of the three units has 17 columns: temperature, acceleration of 16 g (3) and of 6 g (3),
# angular velocity (3), magnetic field (3), and an orientation (4) that is not valid.
_SIGNALS = [
    start + kind + axis for start in (3, 20, 37) for kind in (1, 7, 10) for axis in range(3)
]


def pamap2(
    *,
    root: str,
    window: Count,
    stride: Count,
    scale: list[Positive],
    test_subjects: list[Count],
    test_fraction: BelowOne,
) -> Examples:
    """Windows float32 [N, 27, window] of 100 Hz; subjects are the natural clients.

    Channels are acceleration, angular velocity and magnetic field of each unit. A window has one
    activity. Missing values are interpolated linearly in time. No window has rows of both the
    training and the test part of a period.

    Raises:
        ValueError: if files are missing or broken, or no window fits.
    """
    if len(scale) != 3:
        raise ValueError(f"data.scale={list(scale)} must have three values")
    paths = _subject_files(root)
    if unknown := sorted(set(test_subjects) - set(paths)):
        raise ValueError(f"data.test_subjects={unknown}; allowed: of {', '.join(map(str, paths))}")
    parts, labels, subjects, tests = [], [], [], []
    divisors = np.tile(np.repeat(np.array(scale, dtype=np.float32), 3), 3)
    for subject, path in paths.items():
        activity, signals = _read_subject(path)
        is_test = subject in test_subjects
        fraction = 0.0 if test_subjects else test_fraction
        for start, stop, held_out in _periods(activity, fraction):
            if stop - start >= window:
                rows = np.lib.stride_tricks.sliding_window_view(signals[start:stop], window, 0)
                parts.append(rows[::stride] / divisors[:, None])
                labels += [ACTIVITIES.index(activity[start])] * len(parts[-1])
                subjects += [subject] * len(parts[-1])
                tests += [is_test or held_out] * len(parts[-1])
    if not parts or all(tests):
        raise ValueError(f"data.window={window}: no training period of an activity is as long")
    test = np.array(tests)
    clients = number_clients(np.array(subjects), test, where=f"data.root={root}")
    return Examples(
        inputs=torch.from_numpy(np.concatenate(parts)),
        targets=torch.tensor(labels),
        num_classes=len(ACTIVITIES),
        is_test=test,
        **clients._asdict(),
    )


def _subject_files(root: str) -> dict[int, Path]:
    folder = Path(root).expanduser() / "Protocol"
    found = {path.stem.removeprefix("subject"): path for path in folder.glob("subject*.dat")}
    paths = {int(number): path for number, path in sorted(found.items()) if number.isdecimal()}
    if not paths:
        raise ValueError(
            f"data.root={root} has no Protocol/subject101.dat; point it to PAMAP2_Dataset/, which "
            "has Protocol/subject101.dat to subject109.dat"
        )
    return paths


def _read_subject(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Activity int64 [rows] and signals float32 [rows, 27] without gaps."""
    table = read_number_table(path)
    if table.shape[1:] != (_NUM_COLUMNS,):
        raise ValueError(f"{path} has {table.shape[1]} columns; allowed: {_NUM_COLUMNS}")
    signals = table[:, _SIGNALS]
    time = np.arange(len(table))
    for column in range(signals.shape[1]):
        known = np.isfinite(signals[:, column])
        if not known.any():
            raise ValueError(f"{path}: column {_SIGNALS[column] + 1} has no value")
        if not known.all():
            signals[:, column] = np.interp(time, time[known], signals[known, column])
    return table[:, _ACTIVITY].astype(np.int64), signals


def read_number_table(path: Path) -> np.ndarray:
    """A text file of numbers, float32 [rows, columns].

    Raises:
        ValueError: if it cannot be read.
    """
    with reading(f"{path} is not a table of numbers"):
        require_file(path)
        return np.loadtxt(path, dtype=np.float32, ndmin=2)


def _periods(activity: np.ndarray, test_fraction: float) -> Iterator[tuple[int, int, bool]]:
    """(start, stop, whether held out) of consecutive rows with one activity of the protocol."""
    cuts = [0, *(np.flatnonzero(np.diff(activity)) + 1).tolist(), len(activity)]
    for start, stop in pairwise(cuts):
        if activity[start] in ACTIVITIES:
            middle = stop - round(test_fraction * (stop - start))
            yield start, middle, False
            yield middle, stop, True
