"""Sign flipping: attackers push the model away from their local optimum.

Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods for
Distributed Learning from Heterogeneous Datasets. AAAI 2019, section "Experiments".
https://arxiv.org/abs/1811.03761
"""

from flfast.channel.attacks.attack import Attack, Poison
from flfast.state.options import Positive, UpToOne


def sign_flip(*, fraction: UpToOne, scale: Positive) -> Poison:
    """Upload `broadcast - scale * (upload - broadcast)`."""
    return Attack(fraction, upload=lambda change, rng: -scale * change)
