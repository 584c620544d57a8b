"""Central test sets: the official one of a published dataset, or a random one."""

import contextlib
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.transforms import BatchTransform
from flfast.state.randomness import generator
from flfast.state.regular_file import reading

Part = Literal["train", "test"]

_TIMEOUT_S = 10.0


def official_examples(
    read: Callable[[Part], tuple[Tensor, Tensor]],
    *,
    files: str,
    root: str,
    num_classes: int,
    transform: BatchTransform,
) -> Examples:
    """Examples of a published dataset: its training set followed by its test set.

    `read` returns a part as uint8 images [N, channels, H, W] and integer labels [N]. Errors name
    the files, and `root`, the folder of the datasets.

    Raises:
        ValueError: if files are missing or damaged, or do not fit together.
    """
    try:
        with _quiet_download():
            (train, train_labels), (test, test_labels) = read("train"), read("test")
    except Exception as error:  # noqa: BLE001 - torchvision raises errors of many types
        raise ValueError(
            f"data.root={root} has no readable {files}: put these files there, point data.root or "
            "the environment variable FLFAST_DATA to them, or set data.download=true with a "
            f"network ({' '.join(str(error).split()) or type(error).__name__})"
        ) from None
    with reading(f"data.root={root}: {files} do not fit together", RuntimeError):
        return Examples(
            inputs=torch.cat([train, test]).contiguous(),
            targets=torch.cat([train_labels, test_labels]).to(torch.int64),
            num_classes=num_classes,
            transform=transform,
            is_test=np.arange(len(train) + len(test)) >= len(train),
        )


def held_out_test(targets: np.ndarray, *, test_fraction: float, seed: int) -> np.ndarray:
    """Random stratified test set, bool [N], without examples if `test_fraction` is 0.

    The share of each class, int [N], is rounded. At least one example stays for training.

    Raises:
        ValueError: if no class has enough examples to hold one out.
    """
    is_test = np.zeros(len(targets), dtype=bool)
    if not test_fraction:
        return is_test
    counts = np.bincount(targets)  # [C]
    num_test = np.minimum(np.floor(test_fraction * counts + 0.5), np.maximum(counts - 1, 0))
    if not num_test.any():
        raise ValueError(
            f"data.test_fraction={test_fraction} holds out no example: the largest class has "
            f"{counts.max(initial=0)} examples; raise it, or set 0 for no test set"
        )
    order = np.lexsort((generator(seed, "test set").random(len(targets)), targets))
    rank = np.arange(len(targets)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_test[order] = rank < np.repeat(num_test, counts)
    return is_test


@contextlib.contextmanager
def _quiet_download() -> Iterator[None]:
    """Redirect torchvision's output to stderr, and time out on hosts that do not answer."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            # NumPy >= 2.4 warns about flags in CIFAR's pickles, which Python 2 wrote.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            yield
    finally:
        socket.setdefaulttimeout(before)
