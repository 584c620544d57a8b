"""Draws `devices.png`: how long a nominal round takes, who is available, and who drops out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from flfast.federation.devices.device import DAY, Devices
from flfast.output.callbacks.figures import draw_charts, sampled
from flfast.output.callbacks.run_picture import RunPicture, or_warn
from flfast.output.results.charts import Line, LineChart, Look, RowChart
from flfast.output.results.formats import readable, tick
from flfast.state.options import Count, Formats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flfast.federation.loop import Federation

_EXAMPLES = 100
_BYTES = 1_000_000
_NOMINAL = "seconds for 100 examples, 1 MB down and up"
_QUARTERS = ("fastest quarter", "second", "third", "slowest quarter")
_SHARE = "share of clients"


class DevicesFigure(RunPicture):
    """Draws the devices of a sample of clients, unless all devices are ideal."""

    file_name = "devices.png"

    def __init__(self, *, max_clients: Count, dpi: Count, formats: Formats) -> None:
        super().__init__(dpi=dpi, formats=formats)
        self._max_clients = max_clients

    @rank_zero_only
    @or_warn
    def on_run_start(self, federation: Federation) -> None:
        """Draw the picture."""
        if federation.timing.is_ideal:
            return
        num = federation.data.num_clients
        shown, title = sampled(num, self._max_clients, federation.title)
        with self.picture(federation, size=(11, 3.8), title=title) as picture:
            draw_devices(picture, federation.timing.devices(shown))


def draw_devices(picture: Figure, devices: Devices) -> None:
    """Draw charts of the devices of at least one client."""
    seconds = nominal_seconds(devices)
    charts = (seconds_chart(seconds), day_chart(devices), dropout_chart(devices, seconds))
    drawn = draw_charts(picture, charts, columns=3, width_ratios=(4, 3, 3))
    picture.axes[0].margins(x=0.2)  # for the words at its points
    picture.axes[1].set(xlim=(0, 24), xticks=range(0, 25, 6))
    look = {"handlelength": 1, "columnspacing": 1}
    picture.legend(drawn.values(), drawn, loc="outside lower right", ncols=3, **look)


def nominal_seconds(devices: Devices) -> np.ndarray:
    """Seconds [K] that a nominal round takes each client."""
    transfers = _BYTES / devices.down + _BYTES / devices.up
    return devices.fixed + _EXAMPLES * devices.per_example + transfers


def dropouts(devices: Devices, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [K] that clients that begin a round leave it, and that they fail.

    A client begins at any second of its availability, with equal probability. The round takes it
    `seconds` [K].
    """
    length = np.where(devices.available < 1, devices.available * DAY, np.inf)
    # It leaves after a time that is uniform in [0, length], unless it ends or fails before.
    must_leave = np.minimum(seconds / length, 1.0)
    expected = np.minimum(devices.hazard * np.minimum(seconds, length), 1e9)
    survives = np.divide(
        -np.expm1(-expected), expected, out=np.ones(len(expected)), where=expected > 1e-9
    )
    leaves = must_leave * survives
    finishes = (1 - must_leave) * np.exp(-devices.hazard * seconds)
    return leaves, np.maximum(1 - leaves - finishes, 0.0)


def seconds_chart(seconds: np.ndarray) -> LineChart:
    """The share of clients [K] that a nominal round takes at most so long."""
    places = np.sort(seconds)
    shares = np.arange(len(places) + 1) / len(places)
    line = Line("", [float(places[0]), *places.tolist()], shares.tolist(), view="global")
    points = [
        (at, share, f"{name}: {readable(at)}")
        for share, name in ((0.5, "median"), (0.95, "95 %"))
        for at in [float(np.quantile(seconds, share))]
    ]
    log = bool(0 < 3 * places[0] < places[-1])
    title = "Seconds of a nominal round"
    return LineChart(title, [line], _NOMINAL, _SHARE, steps=True, log=log, points=points)


def day_chart(devices: Devices) -> LineChart:
    """Who is available at each quarter of an hour of the day."""
    hours = np.linspace(0, 24, 97).tolist()
    there = [float(np.mean(devices.until(3600 * hour) > 0)) for hour in hours]
    line = Line("", hours, there, [0.0] * len(hours), there, view="global")
    return LineChart("Available clients", [line], "hour of the virtual day", _SHARE)


def dropout_chart(devices: Devices, seconds: np.ndarray) -> RowChart:
    """Who drops out of a round that takes clients `seconds` [K], by quarters of the clients."""
    quarters = np.array_split(np.argsort(seconds, kind="stable"), 4)
    reasons = dropouts(devices, seconds)
    means = [[float(r[part].mean()) if len(part) else 0.0 for r in reasons] for part in quarters]
    series = [Look("no longer available", "finetuned"), Look("failed", "local")]
    title, form = "Dropout in this round", partial(tick, _SHARE)
    chart = RowChart(title, "clients that begin it", _QUARTERS, "", series, form).stacked(means)
    return chart._replace(ends=(0.0, max(1.1 * chart.ends[1], 0.01)))
