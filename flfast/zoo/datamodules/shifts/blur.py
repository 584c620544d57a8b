"""Blurred images, by a width that differs between clients.

Hendrycks, Dietterich: Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations. ICLR 2019, has blur among its corruptions of images.
https://arxiv.org/abs/1903.12261
"""

import math
from functools import partial

import numpy as np
from torch import Tensor

from flfast.datamodules.shifts.applying import each_value
from flfast.datamodules.shifts.demands import need_images
from flfast.datamodules.shifts.shift import Affected, Drawn, Facts, Shift, When
from flfast.state.options import NonNegative
from flfast.zoo.datamodules.shifts.strengths import Levels, strengths

_LEAST = 0.01
"""Smallest standard deviation that changes an image, pixels."""


def blur(*, sigma: NonNegative, levels: Levels, at: When) -> Shift:
    """Images under a Gaussian filter; standard deviations below 0.01 pixels change nothing."""

    def draw(clients: np.ndarray, facts: Facts) -> Drawn:
        own = sigma * strengths(clients, levels, seed=facts.seed)
        return {"sigma": np.where(own < _LEAST, 0.0, own)}

    return Shift("blur", at=at, draw=draw, inputs=_blur, check=partial(need_images, "blur"))


def _blur(inputs: Tensor, affected: Affected) -> Tensor:
    return each_value(inputs, affected.drawn["sigma"], 0.0, _blurred)


def _blurred(images: Tensor, sigma: float) -> Tensor:
    from torchvision.transforms.v2 import functional

    # Three standard deviations, but no more than the image mirrored once at its edge.
    radius = [min(max(math.ceil(3 * sigma), 1), size - 1) for size in images.shape[:1:-1]]
    return functional.gaussian_blur(images, [2 * r + 1 for r in radius], [sigma, sigma])
