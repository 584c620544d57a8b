"""Transforms of whole batches, on the batch's device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.state.precision import to_device


@dataclass(frozen=True)
class BatchTransform:
    """Normalises and augments stored inputs for the model. B batch, H, W image size.

    Attributes:
        mean: channel means of inputs scaled to [0, 1]; None does not normalise.
        std: channel standard deviations of inputs scaled to [0, 1].
        random_crop: pixels of zero padding before a random crop back to H x W; 0 is off.
        random_flip: mirror half of the images horizontally.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    random_crop: int = 0
    random_flip: bool = False

    @property
    def augments(self) -> bool:
        """Whether training batches are changed at random."""
        return bool(self.random_crop or self.random_flip)

    def __call__(
        self, inputs: Tensor, *, dtype: torch.dtype, rng: np.random.Generator | None = None
    ) -> Tensor:
        """Transform [B, ...] inputs to the floating-point type of the model.

        Integers other than uint8, such as tokens, keep their type. `rng` augments uint8 images [B,
        channels, H, W]; None for evaluation.
        """
        if rng is not None and self.augments:
            # A row of draws per image, so that they do not depend on the batch size.
            draws = to_device(rng.random((len(inputs), 3)), inputs.device)
            if self.random_flip:
                flip = draws[:, 0].view(-1, 1, 1, 1) < 0.5
                inputs = torch.where(flip, inputs.flip(-1), inputs)
            if self.random_crop:
                inputs = _crop(inputs, self.random_crop, draws[:, 1:])
        if inputs.dtype == torch.uint8:
            return self._normalised_(inputs.to(dtype).div_(255), dtype)
        if inputs.is_floating_point():
            inputs = inputs.to(dtype)
        return inputs if self.mean is None else self._normalised_(inputs.clone(), dtype)

    def _normalised_(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        # In place: with new tensors, these operators take half of a small model's step.
        if self.mean is None or self.std is None:
            return inputs
        if len(self.mean) == len(self.std) == 1:
            return inputs.sub_(self.mean[0]).div_(self.std[0])
        mean = _per_channel(self.mean, dtype, inputs.device)
        return inputs.sub_(mean).div_(_per_channel(self.std, dtype, inputs.device))


AS_STORED = BatchTransform()


def image_transform(
    *,
    mean: Sequence[float],
    std: Sequence[float],
    channels: int,
    random_crop: int = 0,
    random_flip: bool = False,
) -> BatchTransform:
    """Normalisation and augmentation for uint8 images.

    Raises:
        ValueError: if mean or std has neither one value nor one per channel, or std is not > 0.
    """
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in {1, channels}:
            raise ValueError(
                f"data.{name}={list(values)} must have {channels} values, one per channel"
            )
    if min(std) <= 0:
        raise ValueError(f"data.std={list(std)} must be > 0")
    return BatchTransform(
        mean=tuple(mean), std=tuple(std), random_crop=random_crop, random_flip=random_flip
    )


@lru_cache
def _per_channel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Cached: creating the tensor for every batch would make the CPU wait for the GPU.
    with torch.inference_mode(mode=False):
        return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)


def _crop(inputs: Tensor, padding: int, draws: Tensor) -> Tensor:
    _, _, height, width = inputs.shape
    top, left = (draws * (2 * padding + 1)).long().unbind(dim=1)
    padded = F.pad(inputs, [padding] * 4)
    rows = top[:, None] + torch.arange(height, device=inputs.device)  # [B, H]
    columns = left[:, None] + torch.arange(width, device=inputs.device)  # [B, W]
    batch = torch.arange(len(inputs), device=inputs.device)[:, None, None]
    # Advanced indices around a slice put the channel last: [B, H, W, channels].
    return padded[batch, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
