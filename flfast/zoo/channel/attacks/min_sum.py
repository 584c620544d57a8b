"""Min-sum: the strongest shift whose squared distances from honest changes are no outlier.

Shejwalkar, Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses
for Federated Learning. NDSS 2021, section IV, "AGR-agnostic attacks".
https://www.ndss-symposium.org/wp-content/uploads/ndss2021_6C-3_24498_paper.pdf

    m = mean_i u_i + gamma * p
    largest gamma with  sum_i |m - u_i|^2 <= max_i sum_j |u_i - u_j|^2

u_i are the honest changes that the attackers know: their own. The authors' code takes the smallest
of these sums as the bound, the paper the largest, as here. They bisect; gamma is a square root,
since the differences from the mean add up to zero.
"""

import torch
from torch import Tensor

from flfast.channel.attacks.attack import Collusion, colluding
from flfast.state.options import UpToOne
from flfast.state.row_statistics import squared_distances
from flfast.zoo.channel.attacks.perturbation import Direction, perturbation


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
