"""Made grey images of discs and rectangles, with masks; each client has a scanner of its own."""

from dataclasses import dataclass

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.source import DataSource
from flfast.datamodules.transforms import image_transform
from flfast.state.options import Count, NonNegative, NonNegativeInt, Several
from flfast.state.randomness import generator


@dataclass(frozen=True, kw_only=True)
class SyntheticShapes(DataSource):
    """Images uint8 [N, 1, side, side] of class 1, discs, and class 2, rectangles; 0 is the rest.

    An image has one to three shapes, each brighter than the textured background. The
    scanner of a client has a contrast, a brightness, a bias field that grows in some direction,
    and a level of noise. `scanner` scales how far these are from those of the mean scanner.
    """

    num_clients: Count
    per_client: Count
    test_per_client: NonNegativeInt
    side: Several
    scanner: NonNegative
    noise: NonNegative
    dice_weight: NonNegative
    seed: int

    def load(self) -> Examples:
        """The images of all clients, one client after the other."""
        each, side = self.per_client + self.test_per_client, self.side
        num = self.num_clients * each
        require_memory(2 * num * side**2, f"data=synthetic_shapes: {num:,} images of side {side}")
        images = np.empty((num, 1, side, side), dtype=np.uint8)
        masks = np.zeros((num, side, side), dtype=np.uint8)
        for client in range(self.num_clients):
            part = slice(client * each, (client + 1) * each)
            self._draw_client(client, images[part, 0], masks[part])
        return Examples(
            inputs=torch.from_numpy(images),
            targets=torch.from_numpy(masks),
            num_classes=3,
            transform=image_transform(mean=[0.5], std=[0.25], channels=1),
            is_test=np.arange(num) % each >= self.per_client,
            owner=np.arange(num) // each,
            task="segmentation",
            class_names=("background", "disc", "rectangle"),
            dice_weight=self.dice_weight,
        )

    def _draw_client(self, client: int, images: np.ndarray, masks: np.ndarray) -> None:
        """Fill in the images [n, side, side] of a client, as its scanner sees them, and masks."""
        scanner, side = self.scanner, self.side
        drawn = generator(self.seed, "synthetic scanner", client)
        contrast = 0.8 * np.exp(0.5 * scanner * drawn.uniform(-1, 1))
        brightness = 0.25 * scanner * drawn.uniform(-1, 1)
        field, angle = 0.5 * scanner * drawn.random(), 2 * np.pi * drawn.random()
        level = self.noise * np.exp(scanner * drawn.uniform(-1, 1))
        rng = generator(self.seed, "synthetic shapes", client)
        across, down = np.meshgrid(*[np.linspace(-1, 1, side)] * 2)
        bias = 1 + field * (np.cos(angle) * across + np.sin(angle) * down)
        for image, mask in zip(images, masks, strict=True):
            picture = _draw(rng, across, down, mask)
            seen = 0.5 + brightness + contrast * bias * picture
            seen += level * rng.standard_normal((side, side))
            image[:] = np.clip(255 * seen, 0, 255).round()


def _draw(
    rng: np.random.Generator, across: np.ndarray, down: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """Brightness around 0, [side, side]; classes are written into the mask, later shapes on top.

    `across` and `down` are places from -1 to 1.
    """
    waves = rng.uniform(2, 6, 2) @ np.stack([across, down]).reshape(2, -1)
    found: np.ndarray = 0.08 * np.sin(waves + 2 * np.pi * rng.random()).reshape(across.shape)
    for _ in range(rng.integers(1, 4)):
        (x, y), (width, height) = rng.uniform(-0.7, 0.7, 2), rng.uniform(0.18, 0.45, 2)
        shade = rng.uniform(0.25, 0.45)
        kind = rng.integers(1, 3)
        if kind == 1:
            inside = np.hypot(across - x, down - y) < width
        else:
            inside = (abs(across - x) < width) & (abs(down - y) < height)
        found[inside], mask[inside] = shade, kind
    return found
