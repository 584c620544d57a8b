"""Where a round's time goes: arithmetic that nobody can avoid, and the rest. Torch-free.

All of it follows from a contender's columns and the workload's floor; nothing else is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.summary import Line, best_plain, summarise


@dataclass(frozen=True)
class Parts:
    """Seconds of a median round, and of what comes once. The first four add up to the round.

    Attributes:
        arithmetic: floor of training and evaluation: FLOPs, or bytes where they bound a step.
        train: training beyond its floor.
        evaluate: evaluation beyond its floor.
        other: what the medians of the parts lack of the median of the whole; mostly nothing.
        first: how much longer round 1 takes than another: compiling, tracing, recording.
        start: outside of rounds: imports, data, ranks, files.
    """

    arithmetic: float
    train: float
    evaluate: float
    other: float
    first: float
    start: float

    @property
    def whole(self) -> float:
        """Of the median round."""
        return self.arithmetic + self.train + self.evaluate + self.other


def parts(line: Line, floor: dict[str, float]) -> Parts:
    """A contender's parts."""
    middle = {part: line.seconds[part].median for part in ("train", "eval", "whole")}
    return Parts(
        arithmetic=floor["train_s"] + floor["eval_s"],
        train=middle["train"] - floor["train_s"],
        evaluate=middle["eval"] - floor["eval_s"],
        other=middle["whole"] - middle["train"] - middle["eval"],
        first=line.warm_up_s - middle["whole"],
        start=line.startup_s,
    )


def breakdown(entry: dict[str, Any]) -> list[str]:
    """A line on the fastest contender that is neither a plain loop nor has another algorithm."""
    lines = [line for line in summarise(entry) if not line.contender.startswith("plain")]
    lines = [line for line in lines if ":" not in line.contender]
    if not lines:
        return []
    line = min(lines, key=lambda line: line.seconds["whole"].median)
    floor = entry["floor"]
    found = parts(line, floor)
    bound = "FLOPs" if floor["train_flop_s"] >= floor["train_byte_s"] else "bytes of parameters"
    rate = floor["train_flop_s"] / line.seconds["train"].median
    shares = (
        (f"floor ({bound})", found.arithmetic),
        ("training beyond its floor", found.train),
        ("evaluation beyond its floor", found.evaluate),
        ("other", found.other),
    )
    said = ", ".join(
        f"{seconds / found.whole:.0%} {name}"
        for name, seconds in shares
        if name != "other" or abs(seconds) > 0.01 * found.whole
    )
    return [
        f"{line.contender}'s round of {found.whole:.3g} s: {said}; training reaches {rate:.0%} of "
        f"the machine's best FLOP/s, and takes {found.train / entry['steps'] * 1e6:,.0f} us per "
        f"local step beyond its floor; once per run: {found.start:.1f} s outside of rounds, "
        f"{found.first:+.2f} s in round 1"
    ]


def best_loops(entry: dict[str, Any]) -> list[str]:
    """Which plain loop the speeds compare with."""
    best = best_plain({line.contender: line.seconds for line in summarise(entry)})
    if not best:
        return []
    named = ", ".join(f"{b.contender} ({b.seconds:.3g} s) of {p}" for p, b in best.items())
    return [f"best plain loop: {named}"]
