"""The contract: an aggregation rule is a pure function of a cohort's uploads, one row each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Combined(NamedTuple):
    """The result of combining K uploads.

    Attributes:
        vector: [D], in the dtype of the rows.
        used: bool [K], uploads that entered the result; Krum, for one, discards the others.
    """

    vector: Tensor
    used: Tensor


@dataclass(frozen=True)
class Aggregation:
    """An aggregation rule.

    Attributes:
        name: for messages.
        combine: (uploads [K, D], weights float64 [K]) -> `Combined`. All values are finite, K is
            at least `min_uploads`, and rows are in the order of the cohort. None is the weighted
            mean, which needs a running sum only.
        min_uploads: fewest uploads that it can combine, >= 1.
        reason: which options require them, for messages.
    """

    name: str
    combine: Callable[[Tensor, Tensor], Combined] | None = None
    min_uploads: int = 1
    reason: str = ""


MEAN = Aggregation("mean")
