"""Rotated images: clusters of clients, or each client, see them at an angle of their own.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS
2020, section 6: MNIST by 0, 90, 180 and 270 degrees. https://arxiv.org/abs/2006.04088
"""

import numpy as np
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.shifts.applying import each_value
from flfast.datamodules.shifts.client_draws import Assignment, around, clusters
from flfast.datamodules.shifts.demands import need_images
from flfast.datamodules.shifts.shift import Affected, Drawn, Facts, Shift, When
from flfast.state.options import HalfTurn, Numbers


def rotation(*, angles: Numbers, max_degrees: HalfTurn, assignment: Assignment, at: When) -> Shift:
    """Images turned counter-clockwise; pixels from outside of the image are black (0).

    Right angles of square images move pixels, all others interpolate linearly between them.
    """
    centres = np.array(angles, dtype=float)

    def draw(clients: np.ndarray, facts: Facts) -> Drawn:
        cluster = clusters(clients, len(centres), assignment, seed=facts.seed)
        own = around(clients, 0.0, max_degrees, "shift angle", seed=facts.seed)
        return {"cluster": cluster, "degrees": (centres[cluster] + own) % 360}

    return Shift("rotation", at=at, draw=draw, inputs=_rotate, check=_check)


def _check(examples: Examples) -> None:
    need_images("rotation", examples)
    if examples.task == "segmentation":
        raise ValueError(
            "shift=rotation with task=segmentation: masks would stay as they are; allowed: "
            "shift=blur, colour or noise"
        )


def _rotate(inputs: Tensor, affected: Affected) -> Tensor:
    return each_value(inputs, affected.drawn["degrees"], 0.0, _rotated)


def _rotated(images: Tensor, degrees: float) -> Tensor:
    from torchvision.transforms.v2 import InterpolationMode, functional

    return functional.rotate(images, degrees, interpolation=InterpolationMode.BILINEAR)
