"""Min-max: the strongest shift that stays within the largest distance of honest changes.

Shejwalkar, Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses
for Federated Learning. NDSS 2021, section IV, "AGR-agnostic attacks".
https://www.ndss-symposium.org/wp-content/uploads/ndss2021_6C-3_24498_paper.pdf

    m = mean_i u_i + gamma * p
    largest gamma with  max_i |m - u_i| <= max_ij |u_i - u_j|

u_i are the honest changes that the attackers know: their own. The authors bisect; a quadratic
equation for each u_i gives gamma exactly.
"""

import torch
from torch import Tensor

from flfast.channel.attacks.attack import Collusion, colluding
from flfast.state.options import UpToOne
from flfast.state.row_statistics import squared_distances
from flfast.zoo.channel.attacks.perturbation import Direction, perturbation


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
