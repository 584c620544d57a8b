"""Wrong training labels, of a share that differs between clients.

Patrini, Rozza, Menon, Nock, Qu: Making Deep Neural Networks Robust to Label Noise: a Loss
Correction Approach. CVPR 2017: symmetric and class-conditional noise. By client: Xu, Chen, Quek,
Chong: FedCorr: Multi-Stage Federated Learning for Label Noise Correction. CVPR 2022, section 5.1.
https://arxiv.org/abs/2204.04677
"""

from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.shifts.shift import Affected, Shift
from flfast.state.options import UpToOne
from flfast.state.randomness import uniforms
from flfast.zoo.datamodules.shifts.strengths import Levels, need_classes, strengths


def label_noise(*, rate: UpToOne, kind: Literal["symmetric", "pair"], levels: Levels) -> Shift:
    """A fraction of the training labels is wrong; validation and test labels stay right.

    With `kind=pair`, the class after the last one is class 0.
    """
    return Shift(
        "label_noise",
        at="train",
        draw=lambda clients, facts: {"rate": rate * strengths(clients, levels, seed=facts.seed)},
        targets=partial(_disturb, symmetric=kind == "symmetric"),
        check=partial(need_classes, "label_noise"),
    )


def _disturb(targets: Tensor, affected: Affected, *, symmetric: bool) -> Tensor:
    seed, num_classes = affected.facts.seed, affected.facts.num_classes
    wrong = uniforms(seed, "shift wrong", affected.examples) < affected.drawn["rate"]
    steps = np.ones(len(targets), dtype=np.int64)
    if symmetric:
        drawn = uniforms(seed, "shift label", affected.examples) * (num_classes - 1)
        steps += drawn.astype(np.int64)
    return (targets + torch.from_numpy(np.where(wrong, steps, 0))) % num_classes
