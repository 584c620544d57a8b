"""From rows to their verdicts: a page for people, and a JSON file for programs. Torch-free."""

import json
import math
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flfast.output.report.page import filled, save_page
from flfast.output.report.section import Section
from flfast.output.report.verdict import Verdict
from flfast.output.results.charts import DataTable
from flfast.output.results.formats import readable
from flfast.output.results.history import Row, total
from flfast.output.results.table import read_history
from flfast.state.regular_file import read_file, replacing
from flfast.state.version import __version__
from flfast.zoo.commands.conformance.judging import ClaimFinding, Judgement, judge
from flfast.zoo.commands.conformance.row_files import ConformanceRow
from flfast.zoo.commands.conformance.row_jobs import run_folder, run_rows

RECORD, PAGE = "conformance.json", "conformance.html"

_PACKAGES = ("torch", "lightning", "numpy")


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
    device = "GPU" if rows and rows[0].level.startswith("gpu") else "core"
    sys.stdout.write(f"{len(ready)} of {len(rows)} rows, {minutes:.3g} minutes of one {device}\n")
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


def read_record(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of the JSON file of a folder by name; empty if there is none that can be read."""
    try:
        rows = json.loads(read_file(folder / RECORD))["rows"]
        return {str(row["row"]): dict(row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def broken(judged: Sequence[Judgement], before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of rows that do not hold, and are known to, or did in an earlier record."""
    return [
        each.row.name
        for each in judged
        if each.holds is False and (each.row.holds or before.get(each.row.name, {}).get("held"))
    ]


def write_record(
    judged: Sequence[Judgement], before: Mapping[str, Mapping[str, Any]], folder: Path
) -> None:
    """Write the JSON file; rows of the earlier record that were not judged now stay in it.

    A row that held once stays `held`.

    Raises:
        OSError: if it cannot be written.
    """
    rows = dict(before)
    for each in judged:
        name = each.row.name
        if each.holds is None and name in rows:
            continue
        held = each.holds or bool(rows.get(name, {}).get("held"))
        rows[name] = {**_entry(each), "held": held}
    text = json.dumps({"versions": versions(), "rows": list(rows.values())}, indent=1)
    with replacing(folder) as place:
        (place / RECORD).write_text(f"{text}\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Versions of flfast, Python and the packages that compute."""
    own = {"flfast": __version__, "python": platform.python_version()}
    return {**own, **{name: version(name) for name in _PACKAGES}}


def _entry(judged: Judgement) -> dict[str, Any]:
    row = judged.row
    return {
        "row": row.name,
        "level": row.level,
        "verdict": judged.verdict,
        "holds": judged.holds,
        "seconds": round(judged.seconds, 1),
        "versions": versions(),
        "claims": [_claim(finding) for finding in judged.findings],
    }


def _claim(finding: ClaimFinding) -> dict[str, Any]:
    limits = ("published", "than", "tolerance", "above", "below", "factor", "each")
    return {
        "claim": finding.text,
        "value": _number(finding.value),
        "reference": _number(finding.reference),
        **{name: getattr(finding.claim, name) for name in limits},
        "holds": finding.holds,
    }


def _number(value: float) -> float | None:
    """The value as JSON has it, which knows no infinity."""
    return value if math.isfinite(value) else None


def counted(judged: Sequence[Judgement]) -> str:
    """How many rows hold, miss and were not run."""
    held = sum(each.holds is True for each in judged)
    missed = sum(each.holds is False for each in judged)
    return f"{held} rows hold, {missed} miss, {len(judged) - held - missed} were not run"


def write_html(judged: Sequence[Judgement], failed: Sequence[str], folder: Path) -> None:
    """Write the page.

    Raises:
        OSError: if it cannot be written.
    """
    certainty = f"They held before: {', '.join(failed)}." if failed else "No row that held misses."
    page = filled(
        title="Conformance",
        verdict=Verdict(f"{counted(judged)}.", certainty, ""),
        sections=[_overview(judged), *(_section(each) for each in judged)],
        facts=versions(),
    )
    save_page(page, folder / PAGE)


def _overview(judged: Sequence[Judgement]) -> Section:
    rows = [[e.row.name, e.row.title, e.verdict, readable(e.seconds)] for e in judged]
    head = ("row", "what it shows", "verdict", "time")
    return Section("All rows", "", tables=[DataTable("Verdicts", head, rows, words=4)])


def _section(judged: Judgement) -> Section:
    row = judged.row
    rows = [
        [f.text, f"{f.value:.6g}", f"{f.reference:.6g}", "holds" if f.holds else "misses"]
        for f in judged.findings
    ]
    head = ("claim", "value", "reference", "verdict")
    runs = "\n".join(
        f"{name}: {' '.join([*row.settings, *variant.settings])}"
        for name, variant in row.variants.items()
    )
    details = [("Settings of the runs", f"{runs}\nseeds: {', '.join(map(str, row.seeds))}")]
    if row.differences:
        details.append(("Differences from the source", "\n".join(row.differences)))
    return Section(
        row.name,
        f"{row.title} {row.source.paper}, {row.source.url}. Verdict: {judged.verdict}.",
        tables=[DataTable(f"Claims of {row.name}", head, rows)] * bool(rows),
        folded=details,
    )
