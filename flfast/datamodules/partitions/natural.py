"""The partition that comes with the dataset."""

import numpy as np


def natural(labels: np.ndarray, *, owner: np.ndarray | None) -> np.ndarray:
    """Owner of every example according to the dataset, int64 [N].

    Args:
        labels: class of each example, int64 [N].
        owner: client of each example, int [N]; None if the dataset has no clients.

    Raises:
        ValueError: if the dataset has no clients, or they are not numbered 0, 1, ...
    """
    if owner is None:
        raise ValueError(
            "partition=natural needs data that names its clients, "
            "such as data=pfllib or data=synthetic"
        )
    if owner.shape != labels.shape:
        raise ValueError(f"owner has shape {list(owner.shape)}, labels have {list(labels.shape)}")
    # An id of N or more implies clients without examples: it is a name, not a number.
    if owner.min() < 0 or owner.max() >= len(labels):
        raise ValueError(
            f"partition=natural needs clients numbered 0, 1, ..., "
            f"the data name {owner.min()} to {owner.max()} for {len(labels)} examples"
        )
    return owner.astype(np.int64)
