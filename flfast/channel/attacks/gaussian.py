"""Gaussian noise in place of the update.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017, section 5. https://arxiv.org/abs/1703.02757
"""

import numpy as np
import torch
from torch import Tensor

from flfast.channel.attacks.attack import Attack, Poison
from flfast.state.options import Positive, UpToOne


def gaussian(*, fraction: UpToOne, std: Positive) -> Poison:
    """Upload `broadcast + std * noise`, with new noise for every attacker and round."""

    def noise(change: Tensor, rng: np.random.Generator) -> Tensor:
        drawn = torch.from_numpy(np.asarray(rng.standard_normal(tuple(change.shape))))
        return (std * drawn).to(change)

    return Attack(fraction, upload=noise)
