"""Discounts for staleness: what an upload counts that was trained from an older model.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization. OPT 2020, section 5.2.
https://arxiv.org/abs/1903.03934

    constant    s(t) = 1
    polynomial  s(t) = (1 + max(t - b, 0))^-a
    hinge       s(t) = 1 / (1 + a max(t - b, 0))

The paper's polynomial has b = 0.
"""

from collections.abc import Callable
from typing import Literal

DiscountName = Literal["constant", "polynomial", "hinge"]
Discount = Callable[[int], float]

_A = {"polynomial": 0.5, "hinge": 10.0}
_B = {"polynomial": 0.0, "hinge": 4.0}


def discount_of(name: DiscountName, strength: float | None, patience: float | None) -> Discount:
    """(staleness >= 0) -> factor of an upload's change, in (0, 1].

    Args:
        name: function of staleness: `constant`, `polynomial` or `hinge`.
        strength: a >= 0; None is the paper's, 0.5 for `polynomial` and 10 for `hinge`.
        patience: b >= 0; None is the paper's, 0 for `polynomial` and 4 for `hinge`.

    Raises:
        ValueError: if a constant discount has options.
    """
    if name == "constant":
        if (strength, patience) != (None, None):
            given = f"pace.strength={strength} pace.patience={patience}".replace("None", "null")
            raise ValueError(
                f"{given} with pace.discount=constant: allowed: null, or pace.discount=polynomial "
                f"or hinge"
            )
        return lambda staleness: 1.0
    a = _A[name] if strength is None else strength
    b = _B[name] if patience is None else patience

    def polynomial(staleness: int) -> float:
        return float((1 + max(staleness - b, 0.0)) ** -a)

    def hinge(staleness: int) -> float:
        return 1 / (1 + a * max(staleness - b, 0.0))

    return polynomial if name == "polynomial" else hinge
