"""The picture of docs/shifts.md: the same digits as six clients have them, under each shift.

`python -m docs.shifts` draws `docs/images/shifts.png`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from matplotlib.axes import Axes
from omegaconf import OmegaConf

from flfast.datamodules.examples import Examples, group_by_client
from flfast.datamodules.shifts.applying import shift_examples
from flfast.datamodules.shifts.shift import Drawn, Shift
from flfast.datamodules.sources.digits import digits
from flfast.datamodules.transforms import BatchTransform
from flfast.output.callbacks.figures import figure

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "shifts.png"
CLIENTS, SHOWN = 6, (2, 4, 7)
SETTINGS: dict[str, dict[str, Any]] = {
    "rotation": {},
    "noise": {"sigma": 0.4},
    "blur": {"sigma": 1.2},
    "colour": {"brightness": 0.4, "contrast": 0.5, "hue": 0.5},
    "missing_modality": {"probability": 0.5},
    "permuted_labels": {"groups": 3},
    "label_noise": {"rate": 0.5},
}
"""Options of each row; all others are those of conf/shift/."""

_COLOURED = {"colour", "missing_modality"}
_TINTS = torch.tensor([[255, 120, 40], [60, 220, 120], [90, 130, 255]]) / 255


def examples(*, coloured: bool) -> Examples:
    """The shown digits, once for each client: [6 * 3, channels, 8, 8]."""
    every = digits(test_fraction=0.0, mean=[0.5], std=[0.5], seed=0)
    first = [int((every.targets == label).nonzero()[0]) for label in SHOWN]
    images = torch.as_tensor(every.inputs[first])
    if coloured:
        images = (images * _TINTS[:, :, None, None]).to(torch.uint8)  # [3, 3, 8, 8]
    return Examples(
        inputs=images.repeat(CLIENTS, 1, 1, 1),
        targets=torch.tensor(SHOWN).repeat(CLIENTS),
        num_classes=10,
        input_shape=tuple(images.shape[1:]),
        transform=BatchTransform(),
    )


def draw(path: Path) -> None:
    """Write the PNG: a row for each shift, a column for each client."""
    owner = np.repeat(np.arange(CLIENTS), len(SHOWN))
    train = group_by_client(np.arange(len(owner)), owner, CLIENTS)
    nobody = group_by_client(train.indices[:0], owner[:0], CLIENTS)
    splits = {"train": train, "val": nobody, "test": nobody}
    with figure(path, size=(11, 8.6), dpi=110, title="Three digits, by client") as picture:
        panels = picture.subplots(len(SETTINGS), CLIENTS)
        for row, (name, options) in zip(panels, SETTINGS.items(), strict=True):
            config = OmegaConf.load(ROOT / "conf" / "shift" / f"{name}.yaml")
            shift: Shift = instantiate({**config, **options})
            given = examples(coloured=name in _COLOURED)
            shifted, drawn = shift_examples(given, shift, splits, seed=0)
            row[0].set_ylabel(name.replace("_", "\n"), rotation=0, ha="right", va="center")
            for client, axes in enumerate(row):
                _cell(axes, shifted, train.indices_of(client))
                axes.set_xlabel(_said(drawn, client), fontsize=9)
        for client, axes in enumerate(panels[0]):
            axes.set_title(f"client {client}", loc="center", fontsize=10)


def _cell(axes: Axes, shifted: Examples, own: np.ndarray) -> None:
    images = torch.as_tensor(shifted.inputs[own])
    strip = torch.cat([torch.nn.functional.pad(image, (0, 1)) for image in images], dim=2)
    axes.imshow(strip.permute(1, 2, 0), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    for place, label in enumerate(shifted.targets[own].tolist()):
        right = label == SHOWN[place]
        axes.text(9 * place + 3.5, 9.8, f"{label}", ha="center", va="center", fontsize=9)
        axes.texts[-1].set_color("#333333" if right else "#D55E00")
        axes.texts[-1].set_fontweight("normal" if right else "bold")
    axes.set_ylim(10.8, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _said(drawn: Drawn, client: int) -> str:
    words = []
    for name, values in drawn.items():
        value = values[client]
        if name == "missing_columns":
            lost = [c for c, gone in zip(("red", "green", "blue"), value, strict=True) if gone]
            words.append("no " + ", ".join(lost) if lost else "has all")
        elif name == "degrees":
            words.append(f"{value:.0f}°")
        elif name == "cluster":
            words.append(f"cluster {value}")
        elif value.ndim == 0:
            words.append(f"{name} {value:.2f}")
    return ("\n" if len(words) > 2 else ", ").join(words)


if __name__ == "__main__":
    draw(PICTURE)
