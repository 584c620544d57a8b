"""Draws `devices.png`: how long a nominal round takes, who is available, and who drops out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.federation.devices.device import DAY, Devices
from flfast.output.callbacks.figures import COLOURS, figure, sampled
from flfast.output.results.formats import readable
from flfast.state.options import Count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from flfast.federation.loop import Federation

_EXAMPLES = 100
_BYTES = 1_000_000
_NOMINAL = "100 examples, 1 MB down and up"
_QUARTERS = ("fastest quarter", "second", "third", "slowest quarter")


class DevicesFigure(Callback):
    """Draws the devices of a sample of clients, unless all devices are ideal."""

    def __init__(self, *, max_clients: Count, dpi: Count) -> None:
        super().__init__()
        self._max_clients, self._dpi = max_clients, dpi

    @rank_zero_only
    def on_run_start(self, federation: Federation) -> None:
        """Draw `devices.png`."""
        timing = federation.timing
        if timing.is_ideal:
            return
        num = federation.data.num_clients
        shown, title = sampled(num, self._max_clients, federation.title)
        path, devices = federation.run_dir / "devices.png", timing.devices(shown)
        draw_devices(path, devices=devices, title=title, dpi=self._dpi)


def draw_devices(path: Path, *, devices: Devices, title: str, dpi: int) -> None:
    """Write a PNG about the devices of at least one client."""
    seconds = nominal_seconds(devices)
    with figure(path, size=(11, 3.8), dpi=dpi, title=title) as picture:
        times, day, bars = picture.subplots(1, 3, width_ratios=(4, 3, 3))
        _draw_seconds(times, seconds)
        _draw_day(day, devices)
        _draw_dropouts(bars, devices, seconds)


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


def _draw_seconds(axes: Axes, seconds: np.ndarray) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.ecdf(seconds, color=COLOURS["global"])
    for share, name, side in ((0.5, "median", "left"), (0.95, "95 %", "right")):
        value = float(np.quantile(seconds, share))
        axes.plot(value, share, "o", color=COLOURS["local"])
        axes.annotate(
            f"{name}: {readable(value)}",
            (value, share),
            xytext=(8, -4) if side == "left" else (-8, 0),
            textcoords="offset points",
            ha=side,
            fontsize=9,
        )
    if 0 < 3 * seconds.min() < seconds.max():
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.2)
    axes.set_ylim(0, 1.03)
    axes.set_title("Seconds of a nominal round")
    axes.set_xlabel(_NOMINAL)
    axes.set_ylabel("clients")
    _in_percent(axes.yaxis, most=5)


def _draw_day(axes: Axes, devices: Devices) -> None:
    hours = np.linspace(0, 24, 97)
    there = [float(np.mean(devices.until(3600 * hour) > 0)) for hour in hours]
    axes.fill_between(hours, there, color=COLOURS["new"], alpha=0.4, linewidth=0)
    axes.plot(hours, there, color=COLOURS["global"])
    axes.set_xlim(0, 24)
    axes.set_ylim(0, 1.03)
    axes.set_xticks(range(0, 25, 6))
    axes.set_title("Available clients")
    axes.set_xlabel("hour of the virtual day")
    _in_percent(axes.yaxis, most=5)


def _draw_dropouts(axes: Axes, devices: Devices, seconds: np.ndarray) -> None:
    """Stacked bars for quarters of the clients, the fastest on top."""
    quarters = np.array_split(np.argsort(seconds, kind="stable"), 4)
    left = np.zeros(4)
    for shares, label, colour in zip(
        dropouts(devices, seconds),
        ("no longer available", "failed"),
        (COLOURS["finetuned"], COLOURS["local"]),
        strict=True,
    ):
        widths = np.array([shares[part].mean() if len(part) else 0.0 for part in quarters])
        axes.barh(np.arange(4), widths, left=left, color=colour, height=0.7, label=label)
        left += widths
    axes.set_yticks(np.arange(4), labels=_QUARTERS)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.1 * float(left.max()), 0.01))
    axes.set_title("Dropout in this round")
    axes.set_xlabel("clients that begin it")
    axes.spines["left"].set_visible(False)
    _in_percent(axes.xaxis, most=3)
    axes.figure.legend(loc="outside lower right", ncols=3, handlelength=1, columnspacing=1)


def _in_percent(axis: Axis, *, most: int) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.axes.grid(visible=True)
    axis.set_major_locator(MaxNLocator(most))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
