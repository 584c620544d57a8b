"""From rows to their verdicts: runs what is missing, judges, and writes what was found."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flfast.commands.conformance.conformance_files import (
    PAGE,
    broken,
    counted,
    read_record,
    write_html,
    write_record,
)
from flfast.commands.conformance.judging import Judgement, judge
from flfast.commands.conformance.row_files import ConformanceRow
from flfast.commands.conformance.row_jobs import run_folder, run_rows
from flfast.output.results.history import Row, total
from flfast.output.results.table import read_history


def examine_rows(
    rows: Sequence[ConformanceRow], folder: Path, task: Callable[[Any], Any], *, workers: int | str
) -> int:
    """Run and judge rows, print a line for each, and write page and record; the exit code.

    Args:
        rows: rows whose data are missing are not run.
        folder: of runs and results.
        task: trains with a composed config.
        workers: jobs at a time.

    Raises:
        ConfigError: if the folder is in use.
        StoppedError: if a run received a stop request.
    """
    ready = [row for row in rows if not row.missing()]
    minutes = sum(row.minutes for row in ready)
    sys.stdout.write(f"{len(ready)} of {len(rows)} rows, {minutes:.3g} minutes of one core\n")
    errors = run_rows(ready, folder, task, workers=workers)
    judged = [_judged(row, folder, errors) for row in rows]
    before = read_record(folder)
    failed = broken(judged, before)
    folder.mkdir(parents=True, exist_ok=True)
    write_record(judged, before, folder)
    write_html(judged, failed, folder)
    width = max((len(each.row.name) for each in judged), default=0)
    for each in judged:
        sys.stdout.write(f"{each.row.name:{width}}  {each.verdict}\n")
    sys.stdout.write(f"{counted(judged)}: {folder / PAGE}\n")
    if failed:
        sys.stdout.write(f"These held before: {', '.join(failed)}\n")
    return int(bool(failed))


def _judged(row: ConformanceRow, folder: Path, errors: Mapping[Path, str]) -> Judgement:
    missing = row.missing()
    if missing:
        return Judgement(row, reason=f"needs {' and '.join(missing)}")
    histories: dict[str, dict[int, list[Row]]] = {name: {} for name in row.variants}
    seconds = 0.0
    for name in row.variants:
        for seed in row.seeds:
            place = run_folder(folder, row, name, seed)
            if place in errors:
                reason = f"{name}, seed {seed}: {errors[place]}"
                return Judgement(row, reason=reason, failed=True)
            histories[name][seed] = read_history(place / "metrics.csv")
            seconds += total(histories[name][seed], "time/train_s", "time/eval_s")
    return Judgement(row, judge(row, histories), seconds)
