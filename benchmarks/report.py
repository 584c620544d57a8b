"""What a call shows and leaves: a table a workload, a JSON file, a picture. Torch-free."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.breakdown import best_loops, breakdown
from benchmarks.figure import draw
from benchmarks.summary import Line, Spread, heading, summarise, unequal_work

# What a training round may cost beside one of FedAvg.
COSTS = {"scaffold": 1.3, "ditto": 2.3, "fedrep": 1.3}

# What two processes on a machine of two cores should reach, in training.
TARGETS = {"eager-1": 1.8, "eager-2": 1.3}

_COLUMNS = (
    "contender",
    "train s",
    "evaluate s",
    "whole s",
    "samples/s",
    "speed: train, whole",
    "x floor",
    "start s",
    "round 1 s",
    "memory MB",
    "GPU MB",
)


def table(entry: dict[str, Any]) -> Table:
    """A workload's results: least / median / largest seconds of a round, one line a contender."""
    # Markdown, so that it can go into a page as it is.
    drawn = Table(title=heading(entry), box=box.MARKDOWN, title_justify="left")
    lines = summarise(entry)
    columns = _COLUMNS if any(line.gpu_bytes for line in lines) else _COLUMNS[:-1]
    for column in columns:
        drawn.add_column(column, justify="left" if column == "contender" else "right")
    for line in lines:
        drawn.add_row(*_cells(line)[: len(columns)])
    floor = entry["floor"]
    parts = [floor["train_s"], floor["eval_s"], floor["train_s"] + floor["eval_s"]]
    drawn.add_row("floor", *(f"{seconds:.3g}" for seconds in parts))
    return drawn


def _cells(line: Line) -> list[str]:
    return [
        line.contender,
        *(_range(line.seconds[part]) for part in ("train", "eval", "whole")),
        f"{line.samples_per_s:,.0f}",
        ", ".join(f"{line.speed[part]:.2f}" for part in ("train", "whole")) if line.speed else "",
        f"{line.floor['whole']:.1f}",
        f"{line.startup_s:.1f}",
        "" if line.first_round_s is None else f"{line.first_round_s:.1f}",
        f"{line.memory_bytes / 1e6:,.0f}",
        f"{line.gpu_bytes / 1e6:,.0f}",
    ]


def _range(seconds: Spread) -> str:
    if seconds.low == seconds.high:
        return f"{seconds.median:.3g}"
    return f"{seconds.low:.3g} / {seconds.median:.3g} / {seconds.high:.3g}"


LEGEND = (
    "Seconds of a round: least / median / largest, or the only one. Speed: median seconds of the "
    "best plain loop over these; 1 is as fast, 2 twice as fast. x floor: whole seconds over the "
    "least possible. Start: seconds of the process outside of rounds. Round 1: seconds from the "
    "launch to the end of round 1. Memory: the most that all its processes held together, with "
    "the data, shared pages counted once (PSS). GPU: the most that torch held there in rank 0."
)


def notes(entry: dict[str, Any]) -> list[str]:
    """What the reader of a workload's table must also know."""
    lines = summarise(entry)
    said = unequal_work(entry)
    middle = {line.contender: line.seconds["train"].median for line in lines}
    two = middle.get("eager-ddp2")
    if two is not None and entry["workload"]["contenders"]:
        said += [
            f"training of two processes is {middle[name] / two:.2f} times as fast as {name}; "
            f"target {target}: {'reached' if middle[name] / two >= target else 'missed'}"
            for name, target in TARGETS.items()
            if name in middle
        ]
    said += _costs({line.contender: line for line in lines})
    return [*said, *best_loops(entry), *breakdown(entry), *_no_pss(entry), *_warnings(entry)]


def _warnings(entry: dict[str, Any]) -> list[str]:
    return [
        f"{name} warned: {line}"
        for name, runs in entry["measured"].items()
        for line in sorted({line for run in runs for line in run.get("warnings", ())})
    ]


def _no_pss(entry: dict[str, Any]) -> list[str]:
    kinds = {run.get("memory_kind") for runs in entry["measured"].values() for run in runs}
    if "RSS" not in kinds:
        return []
    return [
        "memory is the sum of RSS: this system has no PSS, so shared pages count several times"
    ]


def _costs(lines: dict[str, Line]) -> list[str]:
    """What algorithms cost beside the same contender without one."""
    said = []
    for name, line in lines.items():
        base, *words = name.split(":")
        if words and base in lines:
            train, whole = (
                line.seconds[part].median / lines[base].seconds[part].median
                for part in ("train", "whole")
            )
            target = COSTS.get(words[0])
            reached = "reached" if target and train <= target else "missed"
            said.append(
                f"{name}: training takes {train:.2f} times as long as with FedAvg, a whole round "
                f"{whole:.2f} times" + (f"; target {target}: {reached}" if target else "")
            )
    return said


def busy(machine: dict[str, Any]) -> list[str]:
    """A warning, where other programs use the cores."""
    if machine["load_average"] <= machine["cores"] / 2:
        return []
    return [
        f"the machine is busy (load average {machine['load_average']:.1f} on {machine['cores']} "
        "cores): seconds will be too many, of several threads most of all"
    ]


def growth(result: dict[str, Any]) -> list[str]:
    """What a ten times larger population (W5 to W5m) costs each contender in a round."""
    found = {
        entry["workload"]["name"].removesuffix("-quick"): entry for entry in result["workloads"]
    }
    if not {"W5", "W5m"} <= set(found):
        return []
    small, large = ({line.contender: line for line in summarise(found[n])} for n in ("W5", "W5m"))
    data = found["W5m"]["data_bytes"] - found["W5"]["data_bytes"]
    said = []
    for name in small.keys() & large.keys():
        times = large[name].seconds["whole"].median / small[name].seconds["whole"].median
        more = (large[name].memory_bytes - small[name].memory_bytes - data) / 1e6
        said.append(
            f"{name}: with W5m's clients, ten times W5's, a round takes {times:.2f} times "
            f"as long, and its processes hold {more:+,.0f} MB beyond the data"
        )
    return sorted(said)


def stem(result: dict[str, Any]) -> str:
    """Name of a call's files: date and machine."""
    machine = result["machine"]
    gpu = "" if result["options"]["device"] == "cpu" else "-".join(machine["gpus"][:1])
    words = re.sub(r"[^a-z0-9]+", "-", f"{gpu or machine['cpu']}".lower()).strip("-")
    when = re.sub(r"[^0-9T]", "", result["date"])[:15].replace("T", "-")
    return f"{when}-{words}-{machine['cores']}-cores"


def write(result: dict[str, Any], folder: Path) -> Path:
    """Write a call's JSON file and picture.

    Returns:
        The JSON file; the picture lies beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem(result)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result, path.with_suffix(".png"))
    return path
