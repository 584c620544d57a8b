"""Progress bars of rounds and clients, with the clock of virtual time."""

from __future__ import annotations

import logging
import math
import sys
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import rich
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from rich import progress
from rich.filesize import decimal

from flfast.options import Positive
from flfast.results.durations import readable
from flfast.results.history import number

if TYPE_CHECKING:
    from flfast.engines.reports import ClientReport
    from flfast.federation.loop import Federation
    from flfast.federation.samplers.cohort import Cohort
    from flfast.plan import RoundPlan


class RoundProgress(Callback):
    """Shows progress, the last loss and accuracy, and clients per second.

    On a terminal, and in a notebook where ipywidgets is installed; otherwise nothing is shown.

    Memory and GPU utilisation are those that `Monitor` measures.
    Where clients have virtual time, it also shows the clock, the mean staleness of the last
    uploads, and how many clients are at work.

    Args:
        refresh_per_second: refreshes of the screen per second.
    """

    def __init__(self, *, refresh_per_second: Positive) -> None:
        super().__init__()
        self._refresh_per_second = refresh_per_second
        self._bars: progress.Progress | None = None
        self._redirected: list[tuple[logging.StreamHandler, TextIO]] = []
        self._rounds = self._clients = progress.TaskID(0)
        self._num_clients = 0
        self._round_start, self._rate = 0.0, ""
        self._latest: dict[str, Any] = {}

    @rank_zero_only
    def on_run_start(self, federation: Federation) -> None:
        """Open the bars, if the console can show them."""
        console = rich.get_console()
        if not (console.is_terminal or (console.is_jupyter and find_spec("ipywidgets"))):
            return
        self.close()
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=28),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("eta"),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[note]}", style="cyan"),
            console=console,
            refresh_per_second=self._refresh_per_second,
        )
        for row in federation.history:
            self._latest.update(row)
        self._rounds = self._bars.add_task(
            "rounds ",
            total=federation.rounds,
            completed=self._latest.get("round", 0),
            note=_scores(self._latest),
        )
        self._clients = self._bars.add_task("clients", total=None, note=_clock(self._latest))
        handlers = _console_handlers()
        self._bars.start()
        # Log lines have to go through rich, or they would break the bars.
        self._redirected = [(handler, handler.stream) for handler in handlers]
        for handler in handlers:
            handler.setStream(sys.stdout)

    @rank_zero_only
    def on_round_start(self, federation: Federation, plan: RoundPlan, cohort: Cohort) -> None:
        """Reset the bar of clients."""
        self._num_clients, self._round_start, self._rate = 0, perf_counter(), ""
        if self._bars:
            total, note = len(cohort.clients), _clock(self._latest)
            self._bars.reset(self._clients, total=total, note=note)

    @rank_zero_only
    def on_client_end(self, federation: Federation, report: ClientReport) -> None:
        """Advance the bar of clients."""
        self._num_clients += 1
        if self._bars:
            seconds = max(perf_counter() - self._round_start, 1e-9)
            self._rate = f"{self._num_clients / seconds:,.1f} clients/s"
            note = _joined(self._rate, _clock(self._latest))
            self._bars.update(self._clients, advance=1, note=note)

    @rank_zero_only
    def on_round_end(
        self, federation: Federation, row: dict[str, Any], clients: dict[int, dict[str, Any]]
    ) -> None:
        """Advance the bar of rounds."""
        if self._bars:
            self._latest.update(row)
            note = _scores(self._latest)
            self._bars.update(self._rounds, completed=int(row["round"]), note=note)
            note = _joined(self._rate, _clock(self._latest))
            self._bars.update(self._clients, note=note)

    def on_run_end(self, federation: Federation) -> None:
        """Leave the finished bars on the screen."""
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restore the terminal."""
        self.close()

    def close(self) -> None:
        """Restore the terminal; may be called twice."""
        if self._bars is None:
            return
        for handler, stream in self._redirected:
            handler.setStream(stream)
        self._bars.stop()
        self._bars, self._redirected = None, []


def _console_handlers() -> list[logging.StreamHandler]:
    return [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler)
        and handler.stream in (sys.stdout, sys.stderr)
    ]


def _scores(latest: dict[str, Any]) -> str:
    loss = number(latest, "train/loss")
    accuracies = (number(latest, f"{view}/accuracy") for view in ("global", "local"))
    accuracy = next((value for value in accuracies if math.isfinite(value)), math.nan)
    usage = ("monitor/rank0_memory_bytes", "monitor/gpu_percent")
    memory, gpu = (number(latest, column) for column in usage)
    return _joined(
        f"loss {loss:.4f}" if math.isfinite(loss) else "",
        f"accuracy {accuracy:.1%}" if math.isfinite(accuracy) else "",
        f"{decimal(int(memory))}" if math.isfinite(memory) else "",
        f"GPU {gpu:.0f} %" if math.isfinite(gpu) else "",
    )


def _clock(latest: dict[str, Any]) -> str:
    """Virtual time, staleness and clients at work, as far as the run has them."""
    columns = ("clock/seconds", "clock/staleness", "clock/in_flight")
    seconds, staleness, in_flight = (number(latest, column) for column in columns)
    return _joined(
        f"virtual {readable(seconds)}" if math.isfinite(seconds) else "",
        f"staleness {staleness:.1f}" if math.isfinite(staleness) else "",
        f"{in_flight:,.0f} in flight" if math.isfinite(in_flight) else "",
    )


def _joined(*parts: str) -> str:
    return "  ".join(part for part in parts if part)
