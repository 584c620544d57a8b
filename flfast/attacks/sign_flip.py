"""Sign flip: attackers push the model away from where their data would pull it.

Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods for
Distributed Learning from Heterogeneous Datasets. AAAI 2019, section "Experiments".
https://arxiv.org/abs/1811.03761
"""

from flfast.attacks.attack import Attack
from flfast.options import Fraction, Positive


def sign_flip(*, fraction: Fraction, scale: Positive) -> Attack:
    """Uploads `broadcast - scale * (upload - broadcast)`.

    Args:
        fraction: share of the population that attacks, in [0, 1].
        scale: length of what is uploaded, relative to what was learned, > 0.
    """
    return Attack(fraction, upload=lambda change, rng: -scale * change)
