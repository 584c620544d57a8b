"""Forecasts beside the true values of a few clients, as rows of a file and charts. Torch-free."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from flfast.output.results.charts import Line, LineChart
from flfast.output.results.table import read_curves

FORECAST_COLUMNS = ("set", "place", "client", "mase", "step", "true", "predicted")
PLACES = ("best", "median", "worst")
_LINES = {"true": "train", "predicted": "local"}
"""Lines, and the views of their colours."""
_MOST_WINDOWS = 7
_NOTE = (
    "Forecasts of consecutive windows, the first ones for testing; of several columns the first."
)

_Row = tuple[str, str, str, float, int, float, float]


def chosen_clients(mase: np.ndarray) -> dict[str, int]:
    """Place -> position of the client with the best, median and worst MASE [K], NaN left out."""
    order = mase.argsort(kind="stable")[: int(np.isfinite(mase).sum())]
    if not len(order):
        return {}
    found = {"best": order[0], "median": order[len(order) // 2], "worst": order[-1]}
    return {place: int(client) for place, client in found.items()}


def forecast_rows(
    about: tuple[str, str, str, float], true: np.ndarray, predicted: np.ndarray, stride: int
) -> Iterator[_Row]:
    """Rows of `FORECAST_COLUMNS` of a client's windows [m, H], `stride` steps apart."""
    apart = -(-true.shape[1] // stride)
    for window in range(0, len(true), apart)[:_MOST_WINDOWS]:
        values = zip(true[window].tolist(), predicted[window].tolist(), strict=True)
        yield from ((*about, window * stride + step, *pair) for step, pair in enumerate(values))


def forecast_charts(path: Path) -> Sequence[LineChart]:
    """A chart for each client of a file with such rows.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it has other columns or cells.
    """
    charts = []
    for about, (step, *values) in read_curves(path, FORECAST_COLUMNS[:4], FORECAST_COLUMNS[4:]):
        lines = [
            Line(name, step, y, view=view)
            for (name, view), y in zip(_LINES.items(), values, strict=True)
        ]
        title = f"{about[2]}, {about[1]} MASE in {about[0]}: {float(about[3]):.3g}"
        charts.append(LineChart(title, lines, "step", "value", _NOTE))
    return charts
