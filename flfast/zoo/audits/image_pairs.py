"""Originals and reconstructions: which belongs to which, how alike they are, and a figure."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.datamodules.transforms import BatchTransform
from flfast.output.callbacks.figures import figure

_MOST_DRAWN = 16


class Pairs(NamedTuple):
    """Originals with their reconstructions. B images, pixels scaled to [0, 1].

    Attributes:
        originals: [B, channels, H, W].
        reconstructed: reconstructions, [B, channels, H, W].
        labels: labels of the originals, int64 [B].
        guessed: labels of the reconstructions, int64 [B].
        mse: mean squared error of each, [B].
    """

    originals: Tensor
    reconstructed: Tensor
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
        return (Counter(self.labels.tolist()) & Counter(self.guessed.tolist())).total()


def paired(
    originals: Tensor,
    reconstructed: Tensor,
    labels: Tensor,
    guessed: Tensor,
    bounds: tuple[Tensor, Tensor],
) -> Pairs:
    """Pair images such that the sum of squared errors is least: a batch has no order.

    Images are normalised; for the arguments see `Pairs`. `bounds` are the smallest and the largest
    value of a pixel, [channels, 1, 1] each.
    """
    from scipy.optimize import linear_sum_assignment

    low, high = bounds
    scaled = [((images - low) / (high - low)).flatten(1) for images in (originals, reconstructed)]
    errors = (scaled[0][:, None] - scaled[1][None]).square().mean(dim=2)  # [B, B]
    _, order = linear_sum_assignment(errors.numpy())
    chosen = torch.from_numpy(order)
    return Pairs(
        originals=scaled[0].view_as(originals),
        reconstructed=scaled[1][chosen].view_as(originals),
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


def draw_pairs(path: Path, *, pairs: Pairs, title: str) -> None:
    """Write a PNG of at most 16 images.

    Of images with other than 1 or 3 channels, the first channel is drawn.
    """
    num = min(len(pairs.labels), _MOST_DRAWN)
    with figure(path, size=(max(1.5 * num, 7.5), 4.0), dpi=150, title=title) as picture:
        axes = picture.subplots(2, num, squeeze=False)
        for place in range(num):
            for row, images in enumerate((pairs.originals, pairs.reconstructed)):
                image = images[place]
                shown = image.permute(1, 2, 0) if len(image) == 3 else image[0]
                axes[row, place].imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1)
                axes[row, place].set_axis_off()
            label, guessed = int(pairs.labels[place]), int(pairs.guessed[place])
            name = {"fontsize": 9, "fontweight": "normal", "loc": "center"}
            axes[0, place].set_title(f"original, class {label}", **name)
            psnr = float(pairs.psnr[place])
            axes[1, place].set_title(f"as class {guessed}, {psnr:.1f} dB", **name)
