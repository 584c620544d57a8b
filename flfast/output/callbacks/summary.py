"""The table that is printed at the end of a run."""

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from rich.text import Text

from flfast.federation.loop import Federation
from flfast.output.results.charts import DataTable
from flfast.output.results.columns import VIEWS, is_metric
from flfast.output.results.formats import readable, value
from flfast.output.results.history import (
    Row,
    best_row,
    clock,
    is_measured,
    metric_names,
    number,
    total,
    validation_column,
)
from flfast.output.watch.view import on_screen, screen

_PLAIN_WIDTH = 100


class FinalTable(Callback):
    """Prints first, best and last metrics, time, bytes sent, and the run folder.

    Attributes:
        prints_only: it has no file to write, so it ends a run after those that have.
    """

    prints_only = True

    @rank_zero_only
    def on_run_end(self, federation: Federation) -> None:
        """Print the table; 100 characters wide if the console is not a terminal."""
        console = screen(plain_width=_PLAIN_WIDTH)
        history = federation.history
        rounds = _rounds(history)
        console.print(Text(federation.title, style="italic"), soft_wrap=True)
        if rounds:
            console.print(on_screen(_table(history, rounds)))
        console.print(Text(_costs(history)), soft_wrap=True)
        folder, here = Path(federation.run_dir), Path.cwd()
        shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
        # Soft-wrapped, so that the path can be copied.
        console.print(Text(str(shown), style="bold"), soft_wrap=True)


def _rounds(history: list[dict[str, Any]]) -> dict[str, Row]:
    evaluated = [row for row in history if any(map(is_metric, row))]
    if not evaluated:
        return {}
    column = validation_column(evaluated)
    best = None if column == "train/loss" else best_row(evaluated, column)
    chosen = {"first": evaluated[0], "best val": best, "last": evaluated[-1]}
    return {name: row for name, row in chosen.items() if row is not None}


def _table(history: list[dict[str, Any]], rounds: dict[str, Row]) -> DataTable:
    headings = ["", *(f"{name} (round {row['round']})" for name, row in rounds.items())]
    metrics = [f"{view}/{name}" for name in metric_names([history]) for view in VIEWS]
    rows = [
        [metric, *(value(metric, number(row, metric)) for row in rounds.values())]
        for metric in metrics
        if is_measured([history], metric)
    ]
    return DataTable("", headings, rows)


def _costs(history: list[dict[str, Any]]) -> str:
    num_rounds = sum(int(row["round"]) > 0 for row in history)
    train, evaluate = total(history, "time/train_s"), total(history, "time/eval_s")
    seconds = train + evaluate
    pace = f", {num_rounds / seconds:.2f} rounds/s" if seconds else ""
    up, down = (value("bytes", total(history, f"comm/{way}_bytes")) for way in ("up", "down"))
    virtual = readable(max(clock(history).values(), default=0.0))
    return (
        f"{num_rounds} rounds in {seconds:.1f} s "
        f"(training {train:.1f} s, evaluation {evaluate:.1f} s{pace}) · up {up} · down {down}"
        + (f" · virtual time {virtual}" if clock(history) else "")
    )
