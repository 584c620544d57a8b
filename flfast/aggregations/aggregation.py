"""The contract: an aggregation is a pure function of a cohort's uploads, a row each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Combined(NamedTuple):
    """One upload made of K.

    Attributes:
        vector: [D], in the type of the rows.
        used: bool [K], rows that it was made of; all others were left out whole.
    """

    vector: Tensor
    used: Tensor


@dataclass(frozen=True)
class Aggregation:
    """How uploads become one.

    Attributes:
        name: for messages.
        combine: (uploads [K, D], weights float64 [K]) -> `Combined`; all values are finite, K is
            at least `fewest`, and rows are in the order of the cohort. None is the weighted mean,
            which needs no row but the sum.
        fewest: uploads that it takes, >= 1.
        reason: why so many, for messages.
    """

    name: str
    combine: Callable[[Tensor, Tensor], Combined] | None = None
    fewest: int = 1
    reason: str = ""


MEAN = Aggregation("mean")
