"""Scaled updates: model replacement by outweighing all other clients.

Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How To Backdoor Federated Learning. AISTATS 2020,
equation 3. https://arxiv.org/abs/1807.00459
"""

from flfast.channel.attacks.attack import Attack, Poison
from flfast.state.options import Positive, UpToOne


def scaled(*, fraction: UpToOne, scale: Positive) -> Poison:
    """Upload `broadcast + scale * (upload - broadcast)`."""
    return Attack(fraction, upload=lambda change, rng: scale * change)
