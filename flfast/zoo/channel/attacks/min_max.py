"""Min-max and min-sum: the strongest shift of colluding attackers' mean that looks honest.

Shejwalkar, Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses
for Federated Learning. NDSS 2021, section IV, "AGR-agnostic attacks".
https://www.ndss-symposium.org/wp-content/uploads/ndss2021_6C-3_24498_paper.pdf

    m = mean_i u_i + gamma * p
    min-max: largest gamma with  max_i |m - u_i| <= max_ij |u_i - u_j|
    min-sum: largest gamma with  sum_i |m - u_i|^2 <= max_i sum_j |u_i - u_j|^2

u_i are the honest changes that the attackers know: their own. The authors bisect. A quadratic
equation for each u_i gives gamma of min-max exactly; that of min-sum is a square root, since the
differences from the mean add up to zero. The bound of min-sum is the largest of the sums, as in
the paper; the authors' code takes the smallest.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flfast.channel.attacks.attack import Collusion, colluding
from flfast.state.near_ties import signs
from flfast.state.options import UpToOne
from flfast.state.row_statistics import distances, row_moments, row_products, squared_distances

Direction = Literal["std", "unit", "sign"]


def min_max(*, fraction: UpToOne, direction: Direction) -> Collusion:
    """All attackers of a cohort upload the same change, no farther from any honest one than two.

    An attacker who is alone in a cohort uploads what it learned.
    """

    def change(honest: Tensor, num_clients: int) -> Tensor:
        found = perturbation(honest, direction)
        room = (squared_distances(honest).max() - found.squares).clamp(min=0)  # [A]
        half = found.products
        steps = ((half.square() + found.length * room).sqrt() - half) / found.length
        return found.shifted(steps.min() if found.length else torch.zeros(()))

    return colluding(fraction, change)


def min_sum(*, fraction: UpToOne, direction: Direction) -> Collusion:
    """All attackers of a cohort upload the same change, as close to the others as an honest one.

    An attacker who is alone in a cohort uploads what it learned.
    """

    def change(honest: Tensor, num_clients: int) -> Tensor:
        found = perturbation(honest, direction)
        most = squared_distances(honest).sum(dim=1).max()
        room = (most - found.squares.sum()).clamp(min=0)
        step = (room / (len(honest) * found.length)).sqrt() if found.length else torch.zeros(())
        return found.shifted(step)

    return colluding(fraction, change)


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
