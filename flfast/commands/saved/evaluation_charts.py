"""What an evaluation draws: Kaplan-Meier curves, and forecasts of some clients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flfast.engines.evaluation.measured_set import MeasuredSet
from flfast.output.callbacks.figures import draw_charts, figure
from flfast.output.results.charts import LineChart
from flfast.output.results.forecast_lines import (
    FORECAST_COLUMNS,
    PLACES,
    chosen_clients,
    forecast_charts,
    forecast_rows,
)
from flfast.output.results.survival_curves import COLUMNS, curve_charts, curve_rows
from flfast.output.results.table import write_csv

_DPI = 150


def write_survival(folder: Path, sets: Sequence[MeasuredSet], *, title: str) -> None:
    """Kaplan-Meier curves of the sets that one model predicts: risks of several do not compare."""
    rows = [
        row
        for part in sets
        if not part.name.startswith(("personal", "finetuned", "new_finetuned"))
        for row in curve_rows(part.name, *(value.numpy() for value in part.predictions.values()))
    ]
    if not rows:
        return
    write_csv(folder / "survival.csv", COLUMNS, rows)
    _draw(folder / "survival.png", curve_charts(folder / "survival.csv"), title)


def write_forecasts(folder: Path, sets: Sequence[MeasuredSet], *, title: str) -> None:
    """Forecasts of the clients with the best, median and worst MASE in each set by client."""
    rows = [row for part in sets if part.metrics.of_clients for row in _forecasts(part)]
    if rows:
        write_csv(folder / "forecasts.csv", FORECAST_COLUMNS, rows)
        charts = forecast_charts(folder / "forecasts.csv")
        _draw(folder / "forecasts.png", charts, title, columns=len(PLACES))


CHARTS: Mapping[str, Callable[..., None]] = {
    "survival": write_survival,
    "forecasting": write_forecasts,
}
"""What writes a task's curves, by the task's name: (folder, sets, title=...)."""


def _forecasts(part: MeasuredSet) -> Iterator[tuple[Any, ...]]:
    """Rows of `FORECAST_COLUMNS`; of several columns that are predicted, the first one's."""
    stride, horizon = part.dataset.stride or 1, part.dataset.horizon
    values = (part.predictions[name].numpy() for name in ("targets", "outputs"))
    true, predicted = (found[:, :: found.shape[1] // horizon] for found in values)
    for place, number in chosen_clients(part.metrics.values["mase"].numpy()).items():
        client = int(part.metrics.groups[number])
        name = part.client_names[client] if part.client_names else f"client {client}"
        own = np.flatnonzero(part.clients == client)
        own = own[part.examples[own].argsort()]
        about = (part.name, place, name, float(part.metrics.values["mase"][number]))
        yield from forecast_rows(about, true[own], predicted[own], stride)


def _draw(path: Path, charts: Sequence[LineChart], title: str, *, columns: int = 0) -> None:
    """A picture of charts; 0 columns are one row."""
    columns = columns or len(charts)
    size = (0.5 + 5 * columns, 0.6 + 3.6 * -(-len(charts) // columns))
    with figure(path, size=size, dpi=_DPI, title=title) as picture:
        drawn = draw_charts(picture, charts, columns=columns)
        picture.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=3)
