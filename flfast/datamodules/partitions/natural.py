"""The partition that comes with the dataset; several of its clients can be made into one."""

from typing import Literal

import numpy as np

from flfast.datamodules.partitions.counts import even_counts
from flfast.state.options import Count


def natural(
    num_examples: int,
    *,
    owner: np.ndarray | None,
    group_size: Count,
    rest: Literal["smaller", "larger"],
) -> np.ndarray:
    """Owner of every example according to the dataset, int64 [N].

    The first `group_size` clients of the dataset are client 0. Where groups do not come out even,
    `rest=larger` makes the first groups larger, by one each if there are enough of them.

    Raises:
        ValueError: if the dataset has no clients, or they are not numbered 0, 1, ...
    """
    if owner is None:
        raise ValueError(
            "partition=natural needs data that names its clients, "
            "such as data=pfllib or data=synthetic"
        )
    if owner.shape != (num_examples,):
        raise ValueError(f"owner has shape {list(owner.shape)}, there are {num_examples} examples")
    # An id of N or more implies clients without examples: it is a name, not a number.
    if owner.min() < 0 or owner.max() >= num_examples:
        raise ValueError(
            f"partition=natural needs clients numbered 0, 1, ..., "
            f"the data name {owner.min()} to {owner.max()} for {num_examples} examples"
        )
    num_owners = int(owner.max()) + 1
    if rest == "smaller":
        return owner.astype(np.int64) // group_size
    num_groups = max(num_owners // group_size, 1)
    group = np.repeat(np.arange(num_groups), even_counts(num_owners, num_groups))  # [owners]
    return group[owner]
