"""Originals and reconstructions: which belongs to which, and how alike they are."""

from typing import NamedTuple

import torch
from torch import Tensor

from flfast.datamodules.transforms import BatchTransform


class Pairs(NamedTuple):
    """Originals with their reconstructions. B images, pixels scaled to [0, 1].

    Attributes:
        originals: [B, channels, H, W].
        found: reconstructions, [B, channels, H, W].
        labels: labels of the originals, int64 [B].
        guessed: labels of the reconstructions, int64 [B].
        mse: mean squared error of each, [B].
    """

    originals: Tensor
    found: Tensor
    labels: Tensor
    guessed: Tensor
    mse: Tensor

    @property
    def psnr(self) -> Tensor:
        """Peak signal-to-noise ratio of each, dB [B]; at most 120."""
        return -10 * self.mse.clamp_min(1e-12).log10()

    @property
    def num_right(self) -> int:
        """Labels that were found, in any order."""
        classes = torch.cat([self.labels, self.guessed]).unique()
        counts = [(labels == classes[:, None]).sum(1) for labels in (self.labels, self.guessed)]
        return int(torch.minimum(*counts).sum())


def paired(
    originals: Tensor,
    found: Tensor,
    labels: Tensor,
    guessed: Tensor,
    bounds: tuple[Tensor, Tensor],
) -> Pairs:
    """Pair images such that the sum of squared errors is least: a batch has no order.

    Args:
        originals: normalised, [B, channels, H, W].
        found: reconstructions, likewise.
        labels: labels of the originals, int64 [B].
        guessed: labels of the reconstructions, int64 [B].
        bounds: smallest and largest value of a pixel, [channels, 1, 1] each.
    """
    from scipy.optimize import linear_sum_assignment

    low, high = bounds
    scaled = [((images - low) / (high - low)).flatten(1) for images in (originals, found)]
    errors = (scaled[0][:, None] - scaled[1][None]).square().mean(dim=2)  # [B, B]
    _, order = linear_sum_assignment(errors.numpy())
    chosen = torch.from_numpy(order)
    return Pairs(
        originals=scaled[0].view_as(originals),
        found=scaled[1][chosen].view_as(originals),
        labels=labels,
        guessed=guessed[chosen],
        mse=errors[torch.arange(len(chosen)), chosen],
    )


def pixel_bounds(raw: Tensor, transform: BatchTransform) -> tuple[Tensor, Tensor]:
    """Smallest and largest normalised value of a pixel, [channels, 1, 1] each.

    Args:
        raw: stored images [B, channels, H, W]. Those of uint8 have the range 0 to 255, others
            the range of the given ones.
        transform: normalises them.
    """
    low, high = (0.0, 255.0)
    if raw.dtype != torch.uint8:
        low, high = float(raw.min()), float(raw.max())
    ends = (
        transform(torch.full_like(raw[:1, :, :1, :1], end), dtype=torch.float32)
        for end in (low, high)
    )
    first, last = (end[0] for end in ends)
    return first, torch.maximum(last, first + 1e-6)
