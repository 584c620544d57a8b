"""From every process's rounds to the figures of a table. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

PARTS = ("train", "eval", "whole")


@dataclass(frozen=True)
class Spread:
    """Least, middle and largest of some seconds."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Best:
    """The fastest plain contender, and its median seconds."""

    contender: str
    seconds: float


@dataclass(frozen=True)
class Line:
    """What is said about a contender in a workload.

    Attributes:
        contender: its name.
        seconds: of a round's parts, `train`, `eval` and `whole`, over all measured rounds.
        samples_per_s: examples trained on per second of training, by the median round.
        startup_s: of its processes outside of rounds, median.
        first_round_s: from launch to the end of round 1, median; None where nobody knows.
        warm_up_s: of the first round, which is left out of `seconds`, median.
        speed: of `train` and `whole`: the best plain loop's median seconds over this one's;
            2 is twice as fast, and none without a plain loop.
        floor: of `train` and `whole`: median seconds over the floor's.
        memory_bytes: the most that all its processes held at any time, median.
        gpu_bytes: the most that torch held on the GPU, median; 0 without one.
    """

    contender: str
    seconds: dict[str, Spread]
    samples_per_s: float
    startup_s: float
    first_round_s: float | None
    warm_up_s: float
    speed: dict[str, float]
    floor: dict[str, float]
    memory_bytes: float
    gpu_bytes: float


def spread(values: Sequence[float]) -> Spread:
    """Least, middle and largest value.

    >>> spread([3.0, 1.0, 2.0])
    Spread(low=1.0, median=2.0, high=3.0)
    """
    return Spread(min(values), median(values), max(values))


def summarise(entry: dict[str, Any]) -> list[Line]:
    """A line for each contender that was measured.

    Args:
        entry: `floor`, `data_bytes`, and `measured`: by contender, a result for each repeat.
    """
    measured: dict[str, list[dict[str, Any]]] = entry["measured"]
    seconds = {name: _seconds(runs) for name, runs in measured.items() if runs}
    floor = {part: entry["floor"][f"{part}_s"] for part in ("train", "eval")}
    floor["whole"] = floor["train"] + floor["eval"]
    plain = best_plain(seconds)
    lines = []
    for name, spreads in seconds.items():
        runs = measured[name]
        middle = {part: spreads[part].median for part in PARTS}
        lines.append(
            Line(
                contender=name,
                seconds=spreads,
                samples_per_s=median(run["samples"] for run in runs) / middle["train"],
                startup_s=median(run["startup_s"] for run in runs),
                first_round_s=_median(run["first_round_s"] for run in runs),
                warm_up_s=median(run["warm_up_s"] for run in runs),
                speed={part: best.seconds / middle[part] for part, best in plain.items()},
                floor={part: middle[part] / floor[part] for part in ("train", "whole")},
                memory_bytes=median(run["memory_bytes"] for run in runs),
                gpu_bytes=median(run["rounds"][-1]["gpu_bytes"] for run in runs),
            )
        )
    return lines


def heading(entry: dict[str, Any]) -> str:
    """What a workload is, in a line."""
    note = f" ({entry['note']})" if entry["note"] else ""
    return f"{entry['workload']['name']}: {entry['workload']['title']}{note}"


def unequal_work(entry: dict[str, Any]) -> list[str]:
    """A sentence for each contender that did not do the workload's steps on its samples.

    Algorithms may mean to.
    """
    said = []
    for name, runs in entry["measured"].items():
        if ":" in name:
            continue
        for key in ("steps", "samples"):
            wrong = {round(run[key], 3) for run in runs if abs(run[key] - entry[key]) > 0.5}
            said += [f"{name} did {done:g} {key} a round, not {entry[key]}" for done in wrong]
    return said


def _seconds(runs: Iterable[dict[str, Any]]) -> dict[str, Spread]:
    rounds = [row for run in runs for row in run["rounds"]]
    train, evaluate = [row["train_s"] for row in rounds], [row["eval_s"] for row in rounds]
    whole = [a + b for a, b in zip(train, evaluate, strict=True)]
    return dict(zip(PARTS, map(spread, (train, evaluate, whole)), strict=True))


def best_plain(seconds: dict[str, dict[str, Spread]]) -> dict[str, Best]:
    """The plain contender with the least median seconds of `train`, and that of `whole`.

    Args:
        seconds: of every contender's parts.
    """
    plain = [name for name in seconds if name.startswith("plain")]
    found = {}
    for part in ("train", "whole") if plain else ():
        name = min(plain, key=lambda name: seconds[name][part].median)
        found[part] = Best(name, seconds[name][part].median)
    return found


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
