"""Progress bars of rounds and clients, with the clock of virtual time; or lines in the log."""

import logging
import multiprocessing
import sys
from importlib.util import find_spec
from time import perf_counter
from typing import Any, TextIO

import rich
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from rich import progress
from rich.console import Console

from flfast.channel.sent import ClientReport
from flfast.federation.loop import Federation
from flfast.federation.samplers.cohort import Cohort
from flfast.output.results.formats import readable
from flfast.output.watch.view import scores, usage, virtual
from flfast.state.options import Positive
from flfast.state.plan import RoundPlan

log = logging.getLogger(__name__)

_MOST_SCORES = 2
_LINE_S = 30.0
"""Fewest seconds between two lines in the log."""


class RoundProgress(Callback):
    """Shows progress, the last loss and accuracy, and clients per second.

    Bars on a terminal, and in a notebook where ipywidgets is installed and the run has one
    process. Elsewhere the log gets a line after a round, at most every 30 s.

    Memory and GPU utilisation are those that `Monitor` measures.
    Where clients have virtual time, it also shows the clock, the mean staleness of the last
    uploads, and how many clients are at work.
    """

    def __init__(self, *, refresh_per_second: Positive) -> None:
        super().__init__()
        self._refresh_per_second = refresh_per_second
        self._bars: progress.Progress | None = None
        self._redirected: list[tuple[logging.StreamHandler, TextIO]] = []
        self._rounds = self._clients = progress.TaskID(0)
        self._num_clients = 0
        self._round_start, self._rate = 0.0, ""
        self._latest: dict[str, Any] = {"round": 0}
        self._start = self._line = 0.0
        self._first_round = 0

    @rank_zero_only
    def on_run_start(self, federation: Federation) -> None:
        """Open the bars, if the console can show them."""
        self._start = self._line = perf_counter()
        self._first_round = len(federation.history) - 1
        console = rich.get_console()
        if not (console.is_terminal or _has_widgets(console)):
            return
        self.close()
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=28),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("eta"),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[note]}", style="cyan", markup=False),
            console=console,
            refresh_per_second=self._refresh_per_second,
        )
        for row in federation.history:
            self._latest.update(row)
        done, note = self._latest["round"], _scores(self._latest)
        total = federation.rounds
        self._rounds = self._bars.add_task("rounds ", total=total, completed=done, note=note)
        self._clients = self._bars.add_task("clients", total=None, note=_clients("", self._latest))
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
            total, note = len(cohort.clients), _clients("", self._latest)
            self._bars.reset(self._clients, total=total, note=note)

    @rank_zero_only
    def on_client_end(self, federation: Federation, report: ClientReport) -> None:
        """Advance the bar of clients."""
        self._num_clients += 1
        if self._bars:
            seconds = max(perf_counter() - self._round_start, 1e-9)
            self._rate = f"{self._num_clients / seconds:,.1f} clients/s"
            note = _clients(self._rate, self._latest)
            self._bars.update(self._clients, advance=1, note=note)

    @rank_zero_only
    def on_round_end(
        self, federation: Federation, row: dict[str, Any], clients: dict[int, dict[str, Any]]
    ) -> None:
        """Advance the bar of rounds, or write a line."""
        self._latest.update(row)
        if not self._bars:
            self._write_line(int(row["round"]), federation.rounds)
        else:
            note = _scores(self._latest)
            self._bars.update(self._rounds, completed=int(row["round"]), note=note)
            note = _clients(self._rate, self._latest)
            self._bars.update(self._clients, note=note)

    def _write_line(self, round_idx: int, rounds: int) -> None:
        now, done = perf_counter(), round_idx - max(0, self._first_round)
        if done < 1 or round_idx == rounds or now - self._line < _LINE_S:
            return
        self._line = now
        left = readable((now - self._start) / done * (rounds - round_idx))
        shown = "  ".join([_scores(self._latest), *virtual(self._latest)])
        log.info("round %d of %d: %s, about %s left", round_idx, rounds, shown, left)

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


def _has_widgets(console: Console) -> bool:
    """Whether this process can show bars in a notebook.

    A rank that a notebook has forked cannot: each of its messages takes a connection of its own to
    the kernel, so they arrive in any order, and a widget is told to end before it has begun.
    """
    alone = multiprocessing.parent_process() is None
    return console.is_jupyter and alone and find_spec("ipywidgets") is not None


def _console_handlers() -> list[logging.StreamHandler]:
    return [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler)
        and handler.stream in (sys.stdout, sys.stderr)
    ]


def _scores(latest: dict[str, Any]) -> str:
    return "  ".join([*scores([latest])[:_MOST_SCORES], *usage(latest)])


def _clients(rate: str, latest: dict[str, Any]) -> str:
    return "  ".join([*[rate] * bool(rate), *virtual(latest)])
