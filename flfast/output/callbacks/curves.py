"""Draws `curves.png`: accuracy, or mean absolute error, and loss over rounds and virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.output.callbacks.figures import COLOURS, figure, style_axes
from flfast.output.results.columns import VIEWS
from flfast.output.results.durations import unit
from flfast.output.results.history import Row, clock, number, series
from flfast.state.options import Count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flfast.federation.loop import Federation

_LABELS = {
    "global": "server model, central test",
    "local": "server model, clients' test",
    "personal": "personal models, clients' test",
    "finetuned": "fine-tuned models, clients' test",
    "new": "server model, new clients' test",
    "new_finetuned": "fine-tuned models, new clients' test",
    "val": "server model, validation",
    "personal_val": "personal models, validation",
    "train": "local training",
}


class Curves(Callback):
    """Draws accuracy and loss at the end of the run; of a regression, the mean absolute error.

    Args:
        dpi: pixels per inch; the figure is 11 x 4.8 inches, or 11 x 8.8 if the run has a clock.
    """

    def __init__(self, *, dpi: Count) -> None:
        super().__init__()
        self._dpi = dpi

    @rank_zero_only
    def on_run_end(self, federation: Federation) -> None:
        """Write the figure, if any loss was measured."""
        history = federation.history
        if has_losses(history):
            path, size = federation.run_dir / "curves.png", curves_size(history)
            with figure(path, size=size, dpi=self._dpi, title=federation.title) as picture:
                draw_curves(picture, history)


def has_losses(history: Sequence[Row]) -> bool:
    """Whether there is anything to draw."""
    return any(series(history, f"{view}/loss")[0] for view in _LABELS)


def curves_size(history: Sequence[Row]) -> tuple[float, float]:
    """Width and height of the figure, inches."""
    return (11, 8.8 if clock(history) else 4.8)


def draw_curves(picture: Figure, history: Sequence[Row]) -> None:
    """Draw both metrics over rounds, and over virtual time if there is a clock."""
    seconds = clock(history)
    rows = picture.subplots(1 + bool(seconds), 2, squeeze=False)
    _plot(rows[0], history, lambda rounds: rounds)
    if seconds:
        length, name = unit(max(seconds.values()))
        timed = [row for row in history if int(row["round"]) in seconds]
        _plot(rows[1], timed, lambda rounds: [seconds[r] / length for r in rounds], name)
    # One legend for all axes, outside of them so that it covers no line.
    drawn = {
        label: handle
        for axes in rows[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    picture.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=4)


Places = Callable[[Sequence[int]], Sequence[float]]
"""Rounds to places on the x axis."""


def _plot(
    both: Sequence[Axes],
    history: Sequence[Row],
    places: Places,
    time: str | None = None,
) -> None:
    """Draw both metrics; `time` is the unit of virtual time, None if x is the round."""
    first, loss = both
    is_regression = any(series(history, f"{view}/mae")[0] for view in VIEWS)
    name = "mae" if is_regression else "accuracy"
    for view in VIEWS:
        _plot_line(first, history, f"{view}/{name}", places)
    for view in ("train", *VIEWS):
        _plot_line(loss, history, f"{view}/loss", places)
    if is_regression:
        _plot_spread(loss, history, "loss", places)
    else:
        _plot_spread(first, history, "accuracy", places)
    title = "Mean absolute error" if is_regression else "Accuracy"
    over = None if time is None else f"virtual time [{time}]"
    style_axes(first, title=title, percent=not is_regression, over=over)
    style_axes(loss, title="Loss", percent=False, over=over)


def _plot_line(axes: Axes, history: Sequence[Row], column: str, places: Places) -> None:
    view = column.partition("/")[0]
    rounds, values = series(history, column)
    if rounds:
        # Without markers, a single point would be invisible.
        marker = "o" if len(rounds) <= 12 else ""
        axes.plot(
            places(rounds),
            values,
            color=COLOURS[view],
            label=_LABELS[view],
            marker=marker,
            markersize=4,
        )


def _plot_spread(axes: Axes, history: Sequence[Row], name: str, places: Places) -> None:
    color = COLOURS["local"]
    columns = (f"local/{name}", f"local/{name}_std")
    known = [row for row in history if all(series([row], column)[0] for column in columns)]
    rounds, mean = series(known, columns[0])
    if rounds:
        deviation = np.array([number(row, columns[1]) for row in known])
        band = np.clip([mean - deviation, mean + deviation], 0, 1 if name == "accuracy" else None)
        axes.fill_between(
            places(rounds), *band, color=color, alpha=0.13, linewidth=0, label="± std over clients"
        )
    rounds_worst, worst = series(history, f"local/{name}_worst10")
    if rounds_worst:
        x, label = places(rounds_worst), "worst 10 % of clients"
        axes.plot(x, worst, "--", color=color, linewidth=1.4, label=label)
