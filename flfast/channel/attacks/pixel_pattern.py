"""Pixel-pattern backdoor: images with a bright square in the corner become one class.

Gu, Dolan-Gavitt, Garg: BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply
Chain. 2017, section 4. https://arxiv.org/abs/1708.06733
Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How To Backdoor Federated Learning. AISTATS 2020,
equation 3 (model replacement). https://arxiv.org/abs/1807.00459

Attackers train on their own examples, some of them with the square and the target class. With
`scale` they multiply what they upload, as if the others had learned nothing.
"""

from functools import partial

import torch
from torch import Tensor

from flfast.channel.attacks.attack import Attack, ClassPoison, boosted
from flfast.datamodules.backdoor import Backdoor
from flfast.datamodules.examples import Examples
from flfast.state.options import Count, NonNegativeInt, Positive, PositiveUpToOne, UpToOne


def pixel_pattern(
    *,
    fraction: UpToOne,
    target: NonNegativeInt,
    share: PositiveUpToOne,
    size: Count,
    value: float,
    scale: Positive,
) -> ClassPoison:
    """Images with a square in the lower right corner shall be put into the target class."""
    backdoor = Backdoor(
        trigger=partial(_stamped, size=size, value=value),
        target=target,
        share=share,
        check=partial(_check, size=size, value=value),
    )
    return Attack(fraction, upload=boosted(scale), backdoor=backdoor)


def _stamped(images: Tensor, *, size: int, value: float) -> Tensor:
    result = images.clone()
    result[..., -size:, -size:] = round(255 * value) if images.dtype == torch.uint8 else value
    return result


def _check(examples: Examples, *, size: int, value: float) -> None:
    side = min(examples.input_shape[1:])
    if size > side:
        raise ValueError(f"attack.size={size} with images of {side} pixels; allowed: 1 to {side}")
    if examples.inputs[0].dtype == torch.uint8 and not 0 <= value <= 1:
        raise ValueError(f"attack.value={value} with pixels of one byte; allowed: 0 to 1")
