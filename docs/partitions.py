"""The picture of docs/partitions.md: a panel for each partition, on the digits.

`python -m docs.partitions` draws it anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf

from flfast.datamodules.examples import Examples
from flfast.datamodules.offers import flat_inputs, offers_to
from flfast.datamodules.sources.source import examples_from
from flfast.output.callbacks.figures import figure
from flfast.state.injection import call_with
from flfast.state.randomness import generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "partitions.png"
PANELS = (
    *(
        "iid",
        "quantity",
        "sizes sizes=linear",
        "sizes sizes=exponential",
        "sizes sizes=equal sigma=0.5",
    ),
    *("dirichlet alpha=0.5", "dirichlet alpha=0.1", "dirichlet alpha=0.5 balanced=true"),
    *("inner_dirichlet sigma=0.5", "inner_dirichlet sizes=linear sigma=0", "pathological"),
    *("shards", "distribution", "natural", "natural group_size=3", "semantic"),
)
"""Options with their settings; natural clients are those of data=synthetic."""

_COLUMNS = 4


class Panel(NamedTuple):
    """A partition of a dataset.

    Attributes:
        words: option and settings, such as `dirichlet alpha=0.1`.
        labels: int64 [N].
        owner: client of each example, int64 [N].
        inputs: float32 [N, D].
    """

    words: str
    labels: np.ndarray
    owner: np.ndarray
    inputs: np.ndarray


def panels() -> Iterator[Panel]:
    """Every partition of `PANELS`, with the seed 0."""
    digits = _examples("digits", "test_fraction=0")
    synthetic = _examples("synthetic", "num_test=0", "num_examples=1797", "num_clients=10")
    for words in PANELS:
        option, *settings = words.split()
        examples = synthetic if option == "natural" else digits
        labels = examples.targets.numpy()
        with tempfile.TemporaryDirectory() as folder:
            if option == "distribution":
                settings.append(f"path={_write_table(Path(folder))}")
            partition = instantiate(_node("partition", option, settings))
            offers = offers_to(partition, examples, np.arange(len(labels)))
            owner = call_with(partition, **offers, rng=generator(0, "partition"))
        yield Panel(words, labels, owner, flat_inputs(examples, np.arange(len(labels))))


def draw(path: Path) -> None:
    """Write a PNG with a panel for each partition: bars of clients, coloured by class."""
    rows = -(-len(PANELS) // _COLUMNS)
    title = "Ten clients of the digits: size, and labels by colour"
    with figure(path, size=(3 * _COLUMNS, 2.3 * rows), dpi=90, title=title) as picture:
        grid = picture.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for axes, panel in zip(grid, panels(), strict=True):
            option, _, settings = panel.words.partition(" ")
            if option == "semantic":
                settings = "mean image of a 3, by client"
                _draw_means(axes, panel, label=3)
            else:
                _draw_bars(axes, panel)
            axes.set_title(f"{option}\n", fontsize=11)
            axes.text(0, 1.03, settings, transform=axes.transAxes, fontsize=9)


def _draw_means(axes: Axes, panel: Panel, *, label: int) -> None:
    """The mean image of a class for each client: two rows of five."""
    means = np.full((2, 5, 9, 9), np.nan)  # a pixel between images
    for client in range(10):
        own = panel.inputs[(panel.owner == client) & (panel.labels == label)]
        if len(own):
            means[client // 5, client % 5, :8, :8] = own.mean(axis=0).reshape(8, 8)
    axes.imshow(means.transpose(0, 2, 1, 3).reshape(18, 45), cmap="Greys")
    axes.set_axis_off()


def _draw_bars(axes: Axes, panel: Panel) -> None:
    """A bar for each client, of its examples by class."""
    import matplotlib

    counts = np.zeros((panel.owner.max() + 1, panel.labels.max() + 1), dtype=int)
    np.add.at(counts, (panel.owner, panel.labels), 1)
    left = np.cumsum(counts, axis=1) - counts
    colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
    for label, column in enumerate(counts.T):
        clients = np.arange(len(column))
        axes.barh(clients, column, left=left[:, label], height=0.85, color=colours[label])
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.tick_params(labelsize=8)


def _node(group: str, option: str, settings: list[str]) -> OmegaConf:
    """An option of conf/ with some settings changed."""
    node = OmegaConf.load(ROOT / "conf" / group / f"{option}.yaml")
    return OmegaConf.merge(node, OmegaConf.from_dotlist(settings))  # type: ignore[return-value]


def _examples(option: str, *settings: str) -> Examples:
    return examples_from(instantiate(_node("data", option, list(settings))), seed=0, task=None)


def _write_table(folder: Path) -> Path:
    """A table of ten clients: client k has most of class k, less of the next, and so on."""
    weights = np.array([8, 4, 2, 1, 0, 0, 0, 0, 0, 0])
    table = np.stack([np.arange(10), *(np.roll(weights, client) for client in range(10))])
    path = folder / "table.csv"
    np.savetxt(path, table, fmt="%d", delimiter=",")
    return path


if __name__ == "__main__":
    draw(PICTURE)
