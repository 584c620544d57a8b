"""A shift of the mean of the attackers' changes, for min-max and min-sum.

Shejwalkar and Houmansadr, NDSS 2021, section IV: see `min_max.py`.
"""

from typing import Literal, NamedTuple

from torch import Tensor

from flfast.state.near_ties import signs
from flfast.state.row_statistics import distances, row_moments, row_products

Direction = Literal["std", "unit", "sign"]


class Perturbation(NamedTuple):
    """The mean of A changes, and a direction to shift it in. All are float64.

    Attributes:
        mean: [D].
        direction: p [D].
        length: |p|^2.
        squares: |mean - u_i|^2 of the changes u_i, [A].
        products: p . (mean - u_i), [A].
    """

    mean: Tensor
    direction: Tensor
    length: float
    squares: Tensor
    products: Tensor

    def shifted(self, step: Tensor) -> Tensor:
        """`mean + step * p`, [D]."""
        return self.mean + step * self.direction


def perturbation(changes: Tensor, direction: Direction) -> Perturbation:
    """The perturbation of the attackers' changes [A, D], A >= 1.

    p is minus the standard deviation of each coordinate for `std`, minus the mean's unit vector
    for `unit`, and minus the mean's signs for `sign`.
    """
    mean, std = row_moments(changes)
    if direction == "std":
        p = -std
    elif direction == "unit":
        p = -mean / mean.norm().clamp(min=1e-300)
    else:
        p = -signs(mean, mean.abs().mean())
    products = p @ mean - row_products(changes, p)
    return Perturbation(mean, p, float(p @ p), distances(changes, mean).square(), products)
