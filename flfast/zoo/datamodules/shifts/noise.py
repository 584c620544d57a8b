"""Gaussian noise whose level differs between clients.

Li, Diao, Chen, He: Federated Learning on Non-IID Data Silos: An Experimental Study. ICDE 2022,
noise-based feature imbalance. https://arxiv.org/abs/2102.02079

    x + sigma * k / (K - 1) * N(0, 1) for client k of K

as in the authors' code, where this is the standard deviation.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.shifts.shift import Affected, Drawn, Facts, Shift, When
from flfast.state.options import NonNegative
from flfast.state.randomness import generator
from flfast.zoo.datamodules.shifts.strengths import Levels, need_numbers, strengths


def noise(*, sigma: NonNegative, levels: Levels, at: When) -> Shift:
    """Inputs with Gaussian noise, drawn once for each example; bytes stay in their range."""

    def draw(clients: np.ndarray, facts: Facts) -> Drawn:
        return {"sigma": sigma * strengths(clients, levels, seed=facts.seed)}

    return Shift("noise", at=at, draw=draw, inputs=_add, check=partial(need_numbers, "noise"))


def _add(inputs: Tensor, affected: Affected) -> Tensor:
    result = inputs.clone()
    is_bytes = inputs.dtype == torch.uint8
    # A generator for each example: one that is read alone then gets the same noise.
    for place, sigma in enumerate(affected.drawn["sigma"].tolist()):
        if sigma == 0:
            continue
        rng = generator(affected.facts.seed, "shift noise", int(affected.examples[place]))
        drawn = rng.standard_normal(tuple(inputs.shape[1:]), dtype=np.float32) * np.float32(sigma)
        added = torch.from_numpy(drawn)
        if is_bytes:
            noisy = inputs[place].float().add_(added, alpha=255.0)
            result[place] = noisy.round_().clamp_(0, 255).to(torch.uint8)
        else:
            result[place] = inputs[place] + added.to(inputs.dtype)
    return result
