"""Images with the light, contrast and colours of the client's own camera.

Hendrycks, Dietterich: Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations. ICLR 2019, has brightness and contrast among its corruptions.
https://arxiv.org/abs/1903.12261
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.shifts.applying import each_value
from flfast.datamodules.shifts.client_draws import around
from flfast.datamodules.shifts.shift import Affected, Drawn, Facts, Shift, When
from flfast.state.options import UpToHalf, UpToOne
from flfast.state.randomness import uniforms
from flfast.zoo.datamodules.shifts.strengths import need_bytes, need_colours

_ORDERS = np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])


def colour(
    *,
    brightness: UpToOne,
    contrast: UpToOne,
    saturation: UpToOne,
    hue: UpToHalf,
    permute_channels: bool,
    at: When,
) -> Shift:
    """Byte images changed as by torchvision's `ColorJitter`, the same for all of a client."""
    coloured = {"saturation": saturation, "hue": hue}
    spreads = {"brightness": brightness, "contrast": contrast, **coloured}

    def draw(clients: np.ndarray, facts: Facts) -> Drawn:
        drawn = {
            name: around(clients, float(name != "hue"), spread, f"shift {name}", seed=facts.seed)
            for name, spread in spreads.items()
            if spread
        }
        if permute_channels:
            chosen = uniforms(facts.seed, "shift channels", clients) * len(_ORDERS)
            drawn["channels"] = _ORDERS[chosen.astype(np.int64)]
        return drawn

    check = partial(_check, {**coloured, "permute_channels": permute_channels})
    return Shift("colour", at=at, draw=draw, inputs=_recolour, check=check)


def _check(coloured: dict[str, float | bool], examples: Examples) -> None:
    need_bytes("colour", examples)
    for key, value in coloured.items():
        if value:
            need_colours(key, value, examples)


def _recolour(inputs: Tensor, affected: Affected) -> Tensor:
    from torchvision.transforms.v2 import functional

    drawn = affected.drawn
    for name in ("brightness", "contrast", "saturation", "hue"):
        if name in drawn:
            adjust = getattr(functional, f"adjust_{name}")
            inputs = each_value(inputs, drawn[name], float(name != "hue"), adjust)
    if "channels" in drawn:
        order = torch.from_numpy(drawn["channels"]).view(*drawn["channels"].shape, 1, 1)
        inputs = inputs.gather(1, order.expand_as(inputs))
    return inputs
