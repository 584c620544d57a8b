"""Types of options with their ranges.

Annotate a setting with one of these and the command line checks it before anything is imported:
`def fedprox(*, mu: NonNegative) -> Algorithm`. Torch-free on purpose.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Count = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Share = Annotated[float, Gt(0), Le(1)]
Portion = Annotated[float, Ge(0), Lt(1)]
BelowHalf = Annotated[float, Ge(0), Lt(0.5)]
BatchSize = Annotated[int, Ge(-1)]
