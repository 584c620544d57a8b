"""Figure of a partition: a heat map of clients x classes, and bars of client sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flfast.output.callbacks.figures import annotate, draw_rows, tick_label
from flfast.output.results.charts import RowChart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_LONGEST_LEVEL = 3
"""Characters of a class that fit side by side."""


def partition_size(num_clients: int) -> tuple[float, float]:
    """Width and height of the picture, inches."""
    return 9.5, float(np.clip(1.7 + 0.3 * num_clients, 3.2, 8))


def draw_partition(
    picture: Figure, sizes: RowChart, classes: Sequence[str], counts: np.ndarray
) -> None:
    """Draw a partition. M clients, C classes; 0 classes are sizes only.

    `sizes` has a row for each client. `classes` are names, and `counts` int64 [M, C] the examples
    of each class.
    """
    num_clients, num_classes = counts.shape
    ticks = _ticks(num_clients, most=25)
    if num_classes:
        heat, bars = picture.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        image = _heat_map(heat, counts)
        if num_clients <= 20 and num_classes <= 15:
            annotate(heat, counts, dark=counts > 0.3 * counts.max(), size=9)
        else:
            picture.colorbar(image, ax=heat, label="examples", pad=0.02, aspect=40)
        heat.set(title="Examples of each class", xlabel="class", ylabel="client")
        chosen = _ticks(num_classes, most=20)
        labels = [tick_label(classes[tick]) for tick in chosen]
        tilted = 90 if max(map(len, labels)) > _LONGEST_LEVEL else 0
        heat.set_xticks(chosen, labels=labels, rotation=tilted)
    else:
        bars = picture.subplots()
    draw_rows(bars, sizes)
    bars.set_yticks(ticks, labels=[tick_label(sizes.names[tick]) for tick in ticks])
    if num_classes:
        bars.set_ylabel("")
        bars.tick_params(axis="y", labelleft=False)
    look = {"handlelength": 1, "columnspacing": 1}
    picture.legend(*bars.get_legend_handles_labels(), loc="outside lower right", ncols=3, **look)


def _heat_map(axes: Axes, counts: np.ndarray) -> AxesImage:
    from matplotlib.colors import PowerNorm

    # A power scale shows ten examples beside ten thousand and, unlike a logarithm, has a zero.
    norm = PowerNorm(gamma=0.45, vmin=0, vmax=max(int(counts.max()), 1))
    image = axes.imshow(counts, norm=norm, cmap="Blues", aspect="auto", interpolation="nearest")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _ticks(num: int, *, most: int) -> np.ndarray:
    return np.arange(0, num, -(-num // most))
