"""The plain loop's data: all in memory on the device, client after client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.building import load_examples
from benchmarks.workload import Workload

# Fastest of 50 to 2,000 for the models here: on a CPU a batch's activations stay in the cache.
EVAL_BATCH = {"cpu": 250, "cuda": 4096}


@dataclass(frozen=True)
class Pixels:
    """How 8-bit images become inputs: (pixels / 255 - mean) / std, in one operation.

    Attributes:
        scale, shift: [channels, 1, 1].
        padding: zeros around a training image, of which a random part of the old size is cut;
            the cut part is mirrored with probability 1/2. 0 is neither.
    """

    scale: Tensor
    shift: Tensor
    padding: int

    def normalised(self, images: Tensor) -> Tensor:
        """float32 inputs of uint8 images [B, channels, H, W]."""
        return torch.addcmul(self.shift, images.float(), self.scale)

    def augmented(self, images: Tensor) -> Tensor:
        """uint8 images [B, channels, H, W], each cropped and mirrored at random.

        With the channels last a pixel is a row of a matrix, and all of it is one gather of rows:
        3.9 us an image of 3x32x32 on a CPU, against 15 of indexing by image, row and column.
        """
        num, channels, height, width = images.shape
        device, padding = images.device, self.padding
        top, left = torch.randint(2 * padding + 1, (2, num, 1), device=device)
        mirrored = torch.rand(num, 1, device=device) < 0.5
        along = torch.arange(width, device=device)
        rows = top + torch.arange(height, device=device)  # [B, H]
        columns = left + torch.where(mirrored, width - 1 - along, along)  # [B, W]
        padded = F.pad(images.permute(0, 2, 3, 1), [0, 0, *[padding] * 4])
        first = torch.arange(num, device=device) * padded[0, :, :, 0].numel()
        pixel = first[:, None, None] + (rows * padded.shape[2])[:, :, None] + columns[:, None, :]
        taken = padded.reshape(-1, channels).index_select(0, pixel.flatten())
        return taken.view(num, height, width, channels).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Population:
    """All data on the device. N training examples, M test examples, K clients.

    Attributes:
        inputs: [N, ...], client after client; uint8 where they are augmented, otherwise ready.
        targets: int64 [N].
        offsets: K + 1 positions; client k has [offsets[k], offsets[k + 1]).
        test: batches of the M test examples.
        pixels: of inputs that are augmented; None otherwise.
        layout: of images in memory, torch's word.
    """

    inputs: Tensor
    targets: Tensor
    offsets: list[int]
    test: list[tuple[Tensor, Tensor]]
    pixels: Pixels | None
    layout: torch.memory_format

    def client(self, client_id: int) -> tuple[Tensor, Tensor]:
        """A client's examples, views."""
        own = slice(self.offsets[client_id], self.offsets[client_id + 1])
        return self.inputs[own], self.targets[own]


def load(workload: Workload, device: str, *, channels_last: bool = False) -> Population:
    """The workload's population.

    Args:
        workload: whose.
        device: `cpu` or `cuda`.
        channels_last: whether images have their channels last; of other inputs there are none.
    """
    examples = load_examples(workload)
    assert isinstance(examples.inputs, Tensor)
    assert examples.is_test is not None
    assert examples.owner is not None
    pool = np.flatnonzero(~examples.is_test)
    owner = examples.owner[pool]
    order = torch.from_numpy(pool[np.argsort(owner, kind="stable")])
    held_out = torch.from_numpy(np.flatnonzero(examples.is_test))
    test_x, test_y = examples.inputs[held_out].to(device), examples.targets[held_out].to(device)
    inputs = examples.inputs[order].to(device)
    transform, pixels = examples.transform, None
    if transform.mean is not None:
        assert transform.std is not None
        mean, std = (
            torch.tensor(v, device=device)[:, None, None] for v in (transform.mean, transform.std)
        )
        pixels = Pixels(1 / (255 * std), -mean / std, transform.random_crop)
        test_x = pixels.normalised(test_x)
        if not workload.augmented:  # once, and not in every epoch again
            inputs, pixels = pixels.normalised(inputs), None
    layout = torch.contiguous_format
    if channels_last and workload.convolves:
        layout = torch.channels_last
        inputs, test_x = _channels_last(inputs), _channels_last(test_x)
    sizes = np.bincount(owner, minlength=workload.num_clients)
    size = EVAL_BATCH[device]
    return Population(
        inputs=inputs,
        targets=examples.targets[order].to(device),
        offsets=[0, *np.cumsum(sizes).tolist()],
        test=list(zip(test_x.split(size), test_y.split(size), strict=True)),
        pixels=pixels,
        layout=layout,
    )


def _channels_last(images: Tensor) -> Tensor:
    """Images [N, channels, H, W] with the same values, channels last in memory."""
    _, channels, height, width = images.shape
    if channels > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # torch takes one channel for either layout, and convolves in the slower one unless told.
    return images.as_strided(images.shape, (height * width, 1, width, 1))
