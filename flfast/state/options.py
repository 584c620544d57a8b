"""Types of options, with their ranges, and what a share means.

The range of an annotated parameter is checked before the function is imported:
`def fedprox(*, mu: NonNegative) -> Algorithm`. Torch-free.
"""

from typing import Annotated, Literal, get_args

import numpy as np
from annotated_types import Ge, Gt, Le, Lt, MinLen

# Every library in use counts with at least 32 bits.
_MAX_INT = 2**31 - 1
# A float up to this limit can still be converted to a 64-bit integer.
_MAX_FLOAT = 1e18

Count = Annotated[int, Ge(1), Le(_MAX_INT)]
NonNegativeInt = Annotated[int, Ge(0), Le(_MAX_INT)]
Seed = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[float, Gt(0), Le(_MAX_FLOAT)]
NonNegative = Annotated[float, Ge(0), Le(_MAX_FLOAT)]
UpToOne = Annotated[float, Ge(0), Le(1)]
PositiveUpToOne = Annotated[float, Gt(0), Le(1)]
Delta = Annotated[float, Gt(0), Lt(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
Speed = Annotated[float, Ge(1e-6), Le(1e12)]
Spread = Annotated[float, Ge(0), Le(10)]
Availability = Annotated[float, Ge(0.001), Le(1)]
UpToHalf = Annotated[float, Ge(0), Le(0.5)]
BelowHalf = Annotated[float, Ge(0), Lt(0.5)]
VocabularySize = Annotated[int, Ge(3), Le(_MAX_INT)]  # padding, unknown, and one word
Rank = Annotated[int, Ge(1), Le(65_536)]  # far more than a layer can use, but fits in memory
Several = Annotated[int, Ge(2), Le(_MAX_INT)]
HalfTurn = Annotated[float, Ge(0), Le(180)]
Numbers = Annotated[list[Annotated[float, Ge(-_MAX_FLOAT), Le(_MAX_FLOAT)]], MinLen(1)]
Bits = Annotated[int, Ge(1), Le(8)]
Format = Literal["png", "svg", "pdf"]  # of pictures
FORMATS = get_args(Format)
Formats = Annotated[list[Format], MinLen(1)]
BatchSize = Annotated[int, Ge(-1), Le(_MAX_INT)]
ModulusBits = Annotated[int, Ge(16), Le(62)]


def num_of_share(share: float, sizes: np.ndarray | int) -> np.ndarray:
    """How many of each number of things are in a share of them, rounded up, int64 like `sizes`.

    >>> num_of_share(0.07, np.array([0, 3, 100])).tolist()
    [0, 1, 7]
    """
    # 0.07 * 100 is 7.000000000000001.
    return np.ceil(share * sizes * (1 - 1e-12)).astype(np.int64)
