"""Types of options with their ranges.

Annotate a setting with one of these and the command line checks it before anything is imported:
`def fedprox(*, mu: NonNegative) -> Algorithm`. Torch-free on purpose.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

# What every library below can count to, and what a float may be and still be a long integer.
_MOST, _LARGEST = 2**31 - 1, 1e18
Count = Annotated[int, Ge(1), Le(_MOST)]
NonNegativeInt = Annotated[int, Ge(0), Le(_MOST)]
Seed = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[float, Gt(0), Le(_LARGEST)]
NonNegative = Annotated[float, Ge(0), Le(_LARGEST)]
Fraction = Annotated[float, Ge(0), Le(1)]
Share = Annotated[float, Gt(0), Le(1)]
Portion = Annotated[float, Ge(0), Lt(1)]
BelowHalf = Annotated[float, Ge(0), Lt(0.5)]
BatchSize = Annotated[int, Ge(-1), Le(_MOST)]
