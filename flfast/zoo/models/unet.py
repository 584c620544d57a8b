"""U-Net: an encoder and a decoder with skip connections, for a class per pixel.

Ronneberger, Fischer, Brox: U-Net: Convolutional Networks for Biomedical Image Segmentation. MICCAI
2015, figure 1. https://arxiv.org/abs/1505.04597. Convolutions are padded, so that masks are as
large as images; width, depth and normalisation are options.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flfast.models.images import check_image, norm_layer
from flfast.state.options import Count
from flfast.tasks.names import TaskName


def unet(  # noqa: PLR0913 - one parameter an option
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    task: TaskName,
    width: Count,
    depth: Count,
    norm: Literal["batch", "group", "none"],
    groups: Count,
) -> nn.Module:
    """U-Net from images [B, channels, H, W] to logits of pixels [B, C, H, W]."""
    if task != "segmentation":
        raise ValueError(
            f"model=unet with task={task}: it gives logits of pixels; allowed: data of "
            "task=segmentation, or another model, such as model=cnn"
        )
    channels, height, side = check_image(input_shape, model="model=unet")
    if height % 2**depth or side % 2**depth:
        raise ValueError(
            f"model.depth={depth} with images of {height} x {side} pixels: allowed: sides "
            f"divisible by 2^depth = {2**depth}, or a smaller depth; data.image_size scales images"
        )
    return _UNet(channels, num_classes, width, depth, norm_layer(norm, groups, narrowest=width))


class _UNet(nn.Module):
    def __init__(
        self,
        channels: int,
        num_classes: int,
        width: int,
        depth: int,
        norm: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        sizes = pairwise([channels, *widths])
        self.encoder = nn.ModuleList(_block(first, last, norm) for first, last in sizes)
        self.upsampling = nn.ModuleList(
            nn.ConvTranspose2d(2 * size, size, kernel_size=2, stride=2) for size in widths[:-1]
        )
        self.decoder = nn.ModuleList(_block(2 * size, size, norm) for size in widths[:-1])
        self.fc = nn.Conv2d(width, num_classes, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        found, skipped = images, list[Tensor]()
        for level, block in enumerate(self.encoder):
            found = block(F.max_pool2d(found, 2) if level else found)
            skipped.append(found)
        for level in reversed(range(len(self.decoder))):
            joined = torch.cat([skipped[level], self.upsampling[level](found)], dim=1)
            found = self.decoder[level](joined)
        logits: Tensor = self.fc(found)
        return logits


def _block(inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """Two 3x3 convolutions, each with normalisation and ReLU."""
    layers = [
        layer
        for size in (inputs, outputs)
        for layer in (nn.Conv2d(size, outputs, kernel_size=3, padding=1), norm(outputs), nn.ReLU())
    ]
    return nn.Sequential(*layers)
