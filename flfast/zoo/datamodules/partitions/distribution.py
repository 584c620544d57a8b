"""Label skew as a table says: how much of each class every client gets.

flwr-datasets divides each class by a table of this kind, too (its distribution partitioner, after
Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020). The file has a header with labels, and a row for each client:

    0,1,2
    10,0,5
    0,3,5      client 1 gets no example of class 0, all of class 1, and half of class 2
"""

import math

import numpy as np

from flfast.datamodules.partitions.counts import (
    assign,
    check_enough,
    largest_remainder,
    raise_to_minimum,
)
from flfast.state.options import Count
from flfast.zoo.state.csv_file import CsvFile, parse_integer, shortened

_OPTION = "partition.path"


def distribution(
    labels: np.ndarray, *, path: str, min_samples: Count, rng: np.random.Generator
) -> np.ndarray:
    """Owner of every example, int64 [N]; each class is divided in the ratios of its column.

    The largest clients give to those with fewer than `min_samples`.

    Raises:
        ValueError: with file, line and what is allowed, if the file cannot be read; if it lacks a
            class, or gives it to nobody.
    """
    columns, table = _read(path)
    check_enough(len(labels), num_clients=len(table), min_samples=min_samples)
    present, classes = np.unique(labels, return_inverse=True)
    for label in present.tolist():
        if label not in columns:
            raise ValueError(
                f"{_OPTION}={path}: has no column of class {label}; allowed: a column for each "
                f"class of the data, {shortened(', '.join(map(str, present.tolist())))}"
            )
        if not table[:, columns[label]].any():
            raise ValueError(
                f"{_OPTION}={path}: gives class {label} to no client; allowed: a number > 0 in "
                f"its column"
            )
    weights = table[:, [columns[label] for label in present.tolist()]].T  # [C, K]
    weights = weights / weights.max(axis=1, keepdims=True)  # else their sum may overflow
    shares = weights / weights.sum(axis=1, keepdims=True)
    counts = largest_remainder(shares, np.bincount(classes)).T
    return assign(classes, raise_to_minimum(counts, min_samples), rng)


def _read(path: str) -> tuple[dict[int, int], np.ndarray]:
    """Number of each label's column, and the table, float64 [K, columns]."""
    file = CsvFile(_OPTION, path)
    lines = file.lines()
    line, header = next(lines)
    labels = [parse_integer(file.where(line), "label", text) for text in header]
    if len(set(labels)) < len(labels):
        raise ValueError(f"{file.where(line)}: has a label twice; allowed: one column per label")
    rows = [[_weight(file.where(line), text) for text in values] for line, values in lines]
    if not rows:
        raise ValueError(f"{file.where(line)}: has no client; allowed: a row for each client")
    return {label: column for column, label in enumerate(labels)}, np.array(rows)


def _weight(where: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise ValueError(f"{where}: {shortened(text)}; allowed: numbers >= 0")
    return weight
