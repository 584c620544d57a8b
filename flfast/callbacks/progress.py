"""Bars of rounds and clients while a run goes on."""

from __future__ import annotations

import logging
import math
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import rich
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from rich import progress

from flfast.callbacks.history import number
from flfast.options import Positive

if TYPE_CHECKING:
    from flfast.engines.reports import ClientReport
    from flfast.federation.loop import Federation
    from flfast.federation.samplers.cohort import Cohort
    from flfast.plan import RoundPlan


class RoundProgress(Callback):
    """Shows rounds, clients, the last loss and accuracy and clients a second, on a terminal only.

    Args:
        refresh_per_second: how often the screen is drawn, per second.
    """

    def __init__(self, *, refresh_per_second: Positive) -> None:
        super().__init__()
        self._refresh_per_second = refresh_per_second
        self._bars: progress.Progress | None = None
        self._redirected: list[tuple[logging.StreamHandler, TextIO]] = []
        self._rounds = self._clients = progress.TaskID(0)
        self._num_clients = 0
        self._round_start = 0.0
        self._latest: dict[str, Any] = {}

    @rank_zero_only
    def on_run_start(self, federation: Federation) -> None:
        """Open the bars, unless nobody looks."""
        console = rich.get_console()
        if not console.is_terminal:
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
        self._clients = self._bars.add_task("clients", total=None, note="")
        handlers = _console_handlers()
        self._bars.start()
        # Log lines written past the bars would tear them.
        self._redirected = [(handler, handler.stream) for handler in handlers]
        for handler in handlers:
            handler.setStream(sys.stdout)

    @rank_zero_only
    def on_round_start(self, federation: Federation, plan: RoundPlan, cohort: Cohort) -> None:
        """Begin the bar of clients anew."""
        self._num_clients, self._round_start = 0, perf_counter()
        if self._bars:
            self._bars.reset(self._clients, total=len(cohort.clients), note="")

    @rank_zero_only
    def on_client_end(self, federation: Federation, report: ClientReport) -> None:
        """One client more."""
        self._num_clients += 1
        if self._bars:
            seconds = max(perf_counter() - self._round_start, 1e-9)
            rate = f"{self._num_clients / seconds:,.1f} clients/s"
            self._bars.update(self._clients, advance=1, note=rate)

    @rank_zero_only
    def on_round_end(
        self, federation: Federation, row: dict[str, Any], clients: dict[int, dict[str, Any]]
    ) -> None:
        """One round more."""
        if self._bars:
            self._latest.update(row)
            note = _scores(self._latest)
            self._bars.update(self._rounds, completed=int(row["round"]), note=note)

    def on_run_end(self, federation: Federation) -> None:
        """Leave the finished bars on the screen."""
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the terminal back."""
        self.close()

    def close(self) -> None:
        """Give the terminal back; harmless when called again."""
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
    shown = [
        f"loss {loss:.4f}" if math.isfinite(loss) else "",
        f"accuracy {accuracy:.1%}" if math.isfinite(accuracy) else "",
    ]
    return "  ".join(part for part in shown if part)
