"""What `benchmarks.gpu` leaves: a page to read, and every number. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.job import Found, Job
from benchmarks.gpu.published import PUBLISHED

SAME = 1e-3  # relative; losses of jobs that compute the same
RESULTS, LOGS, PAGE = "results.json", "logs.txt", "summary.md"
_SHOWN = ("recordings", "recordings_s", "widths", "reserved_gb", "kernels", "device_busy_s")
_LISTS = ("not_recorded", "warnings", "fails", "failed", "tests", "ranks")


def write(results: dict[str, Any], folder: Path, jobs: Sequence[Job]) -> None:
    """Write numbers and page anew.

    Args:
        results: `date`, `machine`, `device`, and `jobs`: by name, what each found.
        folder: where.
        jobs: all that there are.
    """
    (folder / RESULTS).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(page(results, jobs), encoding="utf-8")


def page(results: dict[str, Any], jobs: Sequence[Job]) -> str:
    """The page, in Markdown."""
    facts, found = results["machine"], results["jobs"]
    chips = ", ".join(facts["gpus"]) or "no GPU"
    lines = [
        f"# flfast on {chips if results['device'] == 'cuda' else 'the CPU'}",
        "",
        f"{results['date']}, commit {facts['commit']}, torch {facts['torch']}, "
        f"{facts['cpu']} with {facts['cores']} cores, {chips}.",
        "",
        *(f"- other numbers: {line}" for line in other_numbers(found, jobs)),
        "",
        "| job | | took s | training s | best s | evaluation s | loss | notes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(job.name, found[job.name]) for job in jobs if job.name in found]
    lines += ["", *_costs(found.get("costs", {})), "", *_published(found)]
    return "\n".join(lines) + "\n"


def line(name: str, found: Found) -> str:
    """A job's line on the screen."""
    cells = [cell.strip() for cell in _row(name, found).strip("|").split("|")]
    return " · ".join(cell for cell in cells if cell)


def other_numbers(found: dict[str, Found], jobs: Sequence[Job]) -> list[str]:
    """Jobs that compute the same, and end at other losses."""
    lines = []
    for group in dict.fromkeys(job.same for job in jobs if job.same):
        losses = {
            job.name: found[job.name]["loss"]
            for job in jobs
            if job.same == group and found.get(job.name, {}).get("loss") is not None
        }
        if not losses:
            continue
        expected = next(iter(losses.values()))
        # Of a NaN no comparison holds.
        if not all(abs(loss - expected) <= SAME * abs(expected) for loss in losses.values()):
            lines.append(", ".join(f"{name} {loss:.6g}" for name, loss in losses.items()))
    return lines


def _row(name: str, found: Found) -> str:
    numbers = [found.get(key) for key in ("train_s", "best_train_s", "eval_s", "loss")]
    cells = ["" if number is None else f"{number:.5g}" for number in numbers]
    notes = [found["error"]] if "error" in found else []
    notes += [f"{key} {_text(found[key])}" for key in _SHOWN if found.get(key)]
    notes += [f"{key} {_text(found[key])}" for key in _LISTS if found.get(key)]
    said = "; ".join(notes).replace("|", "/")
    status = found.get("status", "failed")
    return f"| {name} | {status} | {found['seconds']:.0f} | {' | '.join(cells)} | {said} |"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _costs(found: Found) -> list[str]:
    left_out = {"status", "seconds", "error"}
    rows = [(key, value) for key, value in found.items() if key not in left_out]
    if not rows:
        return []
    head = ["## Costs", "", "| what | |", "|---|---|"]
    return [*head, *(f"| {key} | {_text(value)} |" for key, value in rows)]


def _published(found: dict[str, Found]) -> list[str]:
    rows = []
    for entry in PUBLISHED:
        ours = found.get(f"published {entry.name}", {})
        if ours.get("train_s") is not None:
            theirs = "" if entry.seconds is None else f"{entry.seconds:g}"
            rate = entry.workload.cohort / ours["train_s"]
            rows.append(
                f"| {entry.workload.title} | {' '.join(entry.words)} | {ours['train_s']:.3g} | "
                f"{ours['eval_s']:.3g} | {rate:.0f} | {theirs} | {entry.by} |"
            )
    if not rows:
        return []
    head = "| setting | words | training s | evaluation s | clients/s | published s | by |"
    return ["## Beside numbers of others", "", head, "|---|---|---|---|---|---|---|", *rows]
