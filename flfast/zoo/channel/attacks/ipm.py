"""Inner product manipulation (IPM): attackers pull the aggregate against the honest direction.

Xie, Koyejo, Gupta: Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product
Manipulation. UAI 2019 (PMLR 115, 2020), section 4. https://arxiv.org/abs/1903.03936

    change of every attacker = -epsilon * mean of honest changes

A small epsilon keeps the poisoned change close to the honest ones, so that robust rules accept it.
A large one turns the mean around. The paper's attackers know all honest changes. Here the mean is
that of the attackers' own honest changes, which is the weaker threat.
"""

from flfast.channel.attacks.attack import Collusion, colluding
from flfast.state.options import Positive, UpToOne
from flfast.state.row_statistics import row_moments


def ipm(*, fraction: UpToOne, epsilon: Positive) -> Collusion:
    """All attackers of a cohort upload the negative mean of what they learned."""
    return colluding(fraction, lambda honest, num_clients: -epsilon * row_moments(honest)[0])
