"""Figure of a partition: a heat map of clients x classes, and bars of client sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flfast.output.callbacks.figures import COLOURS, annotate, figure, tick_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_SPLIT_COLOURS = {"train": COLOURS["global"], "val": COLOURS["val"], "test": COLOURS["local"]}

_LONGEST_LEVEL = 3
"""Characters of a class that fit side by side."""


def draw_partition(  # noqa: PLR0913 - one parameter a part of the picture
    path: Path,
    *,
    clients: Sequence[str],
    classes: Sequence[str],
    counts: np.ndarray,
    sizes: dict[str, np.ndarray],
    title: str,
    dpi: int,
) -> None:
    """Write a PNG. M clients, C classes; 0 classes are sizes only.

    `clients`, from top to bottom, and `classes` are names. `counts` int64 [M, C] are examples of
    each class, `sizes` int64 [M] those in each split.
    """
    num_clients, num_classes = counts.shape
    size = (9.5, float(np.clip(1.7 + 0.3 * num_clients, 3.2, 8)))
    with figure(path, size=size, dpi=dpi, title=title) as picture:
        ticks = _ticks(num_clients, most=25)
        labels = [tick_label(clients[tick]) for tick in ticks]
        if not num_classes:
            bars = picture.subplots()
            _size_bars(bars, sizes)
            bars.set_ylabel("client")
            bars.set_yticks(ticks, labels=labels)
            bars.tick_params(axis="y", labelleft=True)
            bars.invert_yaxis()
            return
        heat, bars = picture.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        image = _heat_map(heat, counts)
        if num_clients <= 20 and num_classes <= 15:
            annotate(heat, counts, dark=counts > 0.3 * counts.max(), size=9)
        else:
            picture.colorbar(image, ax=heat, label="examples", pad=0.02, aspect=40)
        _size_bars(bars, sizes)
        heat.set_title("Examples of each class")
        heat.set_xlabel("class")
        heat.set_ylabel("client")
        heat.set_yticks(ticks, labels=labels)
        chosen = _ticks(num_classes, most=20)
        labels = [tick_label(classes[tick]) for tick in chosen]
        tilted = 90 if max(map(len, labels)) > _LONGEST_LEVEL else 0
        heat.set_xticks(chosen, labels=labels, rotation=tilted)


def _heat_map(axes: Axes, counts: np.ndarray) -> AxesImage:
    from matplotlib.colors import PowerNorm

    # A power scale shows ten examples beside ten thousand and, unlike a logarithm, has a zero.
    norm = PowerNorm(gamma=0.45, vmin=0, vmax=max(int(counts.max()), 1))
    image = axes.imshow(counts, norm=norm, cmap="Blues", aspect="auto", interpolation="nearest")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _size_bars(axes: Axes, sizes: dict[str, np.ndarray]) -> None:
    from matplotlib.ticker import MaxNLocator

    left = np.zeros(len(next(iter(sizes.values()))), dtype=np.int64)
    for name, size in sizes.items():
        if size.any():
            places, colour = np.arange(len(size)), _SPLIT_COLOURS[name]
            axes.barh(places, size, left=left, height=0.8, color=colour, label=name)
        left = left + size
    axes.set_title("Size")
    axes.set_xlabel("examples")
    axes.grid(visible=True, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.spines["left"].set_visible(False)
    axes.figure.legend(loc="outside lower right", ncols=3, handlelength=1, columnspacing=1)


def _ticks(num: int, *, most: int) -> np.ndarray:
    return np.arange(0, num, -(-num // most))
