"""Evaluates a saved run: a table on the screen, and files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flfast.commands.saved.evaluated_sets import EvaluatedSet, evaluate
from flfast.commands.saved.evaluation_files import metrics_of, write_all
from flfast.commands.saved.opened_run import open_run, refused
from flfast.config.saved_run import SavedRun
from flfast.federation.table_rows import evaluation_columns
from flfast.output.results.formats import value
from flfast.output.watch.screen import empty_table, screen
from flfast.state.regular_file import make_folder


def report(saved: SavedRun, options: Mapping[str, str]) -> dict[str, float]:
    """Evaluate a run, print a table and write the files.

    Args:
        saved: the run.
        options: reads `split`, `personal`, `predictions` and `output`.

    Returns:
        The metrics by column, such as `global/accuracy`.

    Raises:
        ConfigError: if the run cannot be opened or evaluated so.
        OSError: if the files cannot be written.
    """
    chosen = options.get("personal")
    run = open_run(saved, personal=None if chosen is None else chosen == "true")
    try:
        sets = evaluate(run, options.get("split", "test"))
    finally:
        refused(run.engine.close)
    folder = Path(options.get("output", saved.folder / "evaluation"))
    make_folder(folder, named="output" in options)
    title = f"{run.components.module.algorithm.name} · {run.who} · {run.origin}"
    about: dict[str, Any] = {
        "title": title,
        "run": str(saved.folder),
        "model": "personal" if run.personal else "server",
        "weights": run.origin,
        "round": None if saved.model else run.plan.round_idx,
        "split": options.get("split", "test"),
        "finetune_epochs": saved.config.finetune_epochs,
    }
    parquet = options.get("predictions") == "parquet"
    write_all(folder, sets, about, table="parquet" if parquet else "csv")
    console = screen(plain_width=100)
    console.print(Text(title, style="italic"), soft_wrap=True)
    console.print(_table(sets))
    # Soft-wrapped, so that the path can be copied.
    console.print(Text(str(folder), style="bold"), soft_wrap=True)
    return metrics_of(sets)


def _table(sets: Sequence[EvaluatedSet]) -> Table:
    rows = [evaluation_columns(part.name, part.metrics) for part in sets]
    names = dict.fromkeys(column.partition("/")[2] for row in rows for column in row)
    headline = sets[0].metrics.headline
    shown = sorted(names, key=lambda name: name != headline)
    table = empty_table([""], ["examples", *shown])
    for part, columns in zip(sets, rows, strict=True):
        cells = [value(name, columns.get(f"{part.name}/{name}", float("nan"))) for name in shown]
        table.add_row(f"{part.name}/", str(len(part.examples)), *cells)
    return table
