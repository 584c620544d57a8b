"""What `benchmarks.gpu` leaves: a page to read, all numbers, all logs, pictures. Torch-free."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figure import draw
from benchmarks.gpu_parts import PARTS
from benchmarks.report import LEGEND, notes, table

PICTURES = {"workloads": "workloads.png", "fused-vs-eager": "engines.png"}


def write(result: dict[str, Any], folder: Path) -> None:
    """Write all files anew.

    Args:
        result: `date`, `machine`, `options`, and `parts`: by name, what each found.
        folder: where.
    """
    parts = {name: result["parts"][name] for name in PARTS if name in result["parts"]}
    (folder / "results.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    logs = "\n".join(f"===== {name} =====\n{part['log']}" for name, part in parts.items())
    (folder / "logs.txt").write_text(logs, encoding="utf-8")
    for name, picture in PICTURES.items():
        if name in parts:
            draw({**result, "workloads": parts[name]["workloads"]}, folder / picture)
    (folder / "summary.md").write_text(page(result), encoding="utf-8")


def page(result: dict[str, Any]) -> str:
    """`summary.md`."""
    parts = {name: result["parts"][name] for name in PARTS if name in result["parts"]}
    facts = result["machine"]
    chips = ", ".join(facts["gpus"]) or "no GPU"
    lines = [
        f"# flfast on {chips if result['options']['device'] == 'cuda' else 'the CPU'}",
        "",
        f"{result['date']}, commit {facts['commit']}, torch {facts['torch']}, "
        f"{facts['cpu']} with {facts['cores']} cores, {chips}.",
        "",
        "| part | result | seconds | shows |",
        "|---|---|---|---|",
    ]
    for name, part in parts.items():
        shown = PARTS[name].title
        lines.append(f"| {name} | **{part['status']}** | {part['seconds']:.0f} | {shown} |")
    lines += ["", LEGEND]
    for name, part in parts.items():
        lines += ["", f"## {name}: {part['status']}", ""]
        lines += [f"- failed: {line}" for line in part["failures"]]
        lines += [f"- {line}" for line in part["notes"]]
        if part["status"] == "crashed":
            lines += ["", "```", *part["log"].splitlines()[-15:], "```"]
        lines += _published(part.get("published", []))
        for entry in part["workloads"]:
            if entry["measured"]:
                lines += ["", _text(entry), "", *(f"- {line}" for line in notes(entry))]
    return "\n".join(lines) + "\n"


def _published(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    head = "| setting | flfast | training s | evaluation s | clients/s | published s | by |"
    lines = ["", head, "|---|---|---|---|---|---|---|"]
    for row in rows:
        theirs = "" if row["published_s"] is None else f"{row['published_s']:g}"
        lines.append(
            f"| {row['title']} | {row['contender']} | {row['train_s']:.3g} | {row['eval_s']:.3g} "
            f"| {row['clients_per_s']:.0f} | {theirs} | {row['by']} |"
        )
    return lines


def _text(entry: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(table(entry))
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().strip().splitlines())
