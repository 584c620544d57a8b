"""A little is enough (ALIE): colluding attackers hide within the spread of honest changes.

Baruch, Baruch, Goldberg: A Little Is Enough: Circumventing Defenses For Distributed Learning.
NeurIPS 2019, Algorithm 3. https://arxiv.org/abs/1902.06156

    s = floor(K / 2 + 1) - A
    z_max = the z with Phi(z) = (K - A - s) / (K - A)
    change of every attacker = mean + z * std, coordinate by coordinate

mean and std are those of the A attackers' own honest changes, as in the paper: the attackers see
nobody else's. s is the number of honest clients that the attackers need on their side to be the
majority of the cohort.
"""

import math
from statistics import NormalDist

from torch import Tensor

from flfast.channel.attacks.attack import Collusion, colluding
from flfast.state.options import Positive, UpToOne
from flfast.state.row_statistics import row_moments


def alie(*, fraction: UpToOne, z: Positive | None) -> Collusion:
    """All attackers of a cohort upload the same slightly shifted mean.

    An attacker who is alone in a cohort knows no spread, and uploads what it learned.

    The shift z_max is 0 in cohorts with so few attackers that only the mean itself is safe from a
    majority.
    """

    def change(honest: Tensor, num_clients: int) -> Tensor:
        shift = z_max(num_clients, len(honest)) if z is None else z
        mean, std = row_moments(honest)
        return mean + shift * std

    return colluding(fraction, change)


def z_max(num_clients: int, num_attackers: int) -> float:
    """The largest shift that hides A attackers among K clients of a cohort, >= 0 and finite.

    Attackers that already are the majority are treated as if they needed one more client.
    """
    supporters = max(math.floor(num_clients / 2 + 1) - num_attackers, 1)
    honest = num_clients - num_attackers
    if honest <= supporters:
        return 0.0
    return max(NormalDist().inv_cdf(1 - supporters / honest), 0.0)
