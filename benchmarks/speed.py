"""The command: `python -m benchmarks.speed`, from the root of a checkout.

Each contender of a workload runs in a process of its own; repeats are interleaved and their order
rotates, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from benchmarks import comparison, machine, report
from benchmarks.checkouts import ROOT, Checkout, opened
from benchmarks.contenders import (
    Contender,
    Setting,
    measure,
    measure_floor,
    parse,
)
from benchmarks.processes import ContenderError
from benchmarks.workload import Workload
from benchmarks.workloads import USUAL, WORKLOADS, find

T = TypeVar("T")

COMPARED = ("flfast",)  # of two checkouts

Group = tuple[Contender, ...]


def main() -> None:
    """Measure, show, and leave a JSON file and a picture."""
    options = arguments()
    try:
        with opened(options.against, options.checkouts) as checkouts:
            _measure_all(options, checkouts)
    except (ValueError, ContenderError) as error:
        sys.exit(str(error))


def _measure_all(options: argparse.Namespace, checkouts: Sequence[Checkout]) -> None:
    workloads = [
        find(name, pfllib=options.pfllib, quick=options.quick) for name in options.workloads
    ]
    groups = {w.name: _groups(w, options, checkouts) for w in workloads}
    # A file is no narrower than the table.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    private = {"output", "pfllib", "pfllib_code", "checkouts"}  # paths of this machine
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "options": {k: v for k, v in vars(options).items() if k not in private},
        "checkouts": [checkout.name for checkout in checkouts],
        "workloads": [],
    }
    for line in report.busy(result["machine"]):
        console.print(line)
    if len(checkouts) > 1:
        _try_out(checkouts, options)
    try:
        for workload in workloads:
            result["workloads"].append(_entry(workload, options.device))
            _run(workload, groups[workload.name], options, result["workloads"][-1], console)
    finally:
        # What was measured before a failure or Ctrl-C is kept.
        if any(any(entry["measured"].values()) for entry in result["workloads"]):
            _conclude(result, groups, options.output, console)


def _conclude(
    result: dict[str, Any], groups: dict[str, list[Group]], folder: Path, console: Console
) -> None:
    for line in (*report.growth(result), report.LEGEND):
        console.print(line)
    compared = [
        found
        for entry in result["workloads"]
        for found in comparison.compare(entry, _pairs(groups[entry["workload"]["name"]]))
    ]
    if compared:
        console.print(comparison.table(compared))
    for line in comparison.notes(compared):
        console.print(line)
    console.print(f"written: {report.write(result, folder)} and .png")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description="Time flfast against a plain PyTorch loop, interleaved.",
        epilog="workloads: " + " · ".join(f"{w.name} {w.title}" for w in WORKLOADS.values()),
    )
    add = parser.add_argument
    add("--workloads", nargs="+", default=USUAL, metavar="NAME", help="default: the W ones")
    add(
        "--contenders",
        nargs="+",
        metavar="NAME",
        help="default: the plain loops and flfast's engines",
    )
    add("--repeats", type=_count, default=3, help="processes of each contender")
    add("--rounds", type=_count, help="measured rounds of a process; default: the workload's")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--overrides", nargs="+", default=(), metavar="KEY=VALUE", help="for flfast")
    add("--quick", action="store_true", help="one repeat and round of a twentieth of the work")
    add("--against", metavar="COMMIT", help="also run flfast of that commit, and compare")
    add("--checkouts", nargs=2, type=Path, default=(), metavar="DIR", help="or compare these two")
    add("--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder of results")
    add(
        "--pfllib",
        type=Path,
        default=ROOT.parent / "shared" / "data" / "pfllib-mnist",
        help="folder of PFLlib's MNIST split; where it is not there, W1 uses random images",
    )
    add("--pfllib-code", type=Path, help="checkout of PFLlib, for the contender pfllib")
    options = parser.parse_args(argv)
    options.repeats = 1 if options.quick else options.repeats
    if "pfllib" in (options.contenders or ()) and options.pfllib_code is None:
        parser.error("--contenders pfllib: --pfllib-code names a checkout of PFLlib's repository")
    if options.against and options.checkouts:
        parser.error("--against and --checkouts exclude each other")
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count >= 1")
    return int(text)


def _groups(
    workload: Workload, options: argparse.Namespace, checkouts: Sequence[Checkout]
) -> list[Group]:
    """Contenders, those of the same name in different checkouts together."""
    usual = COMPARED if len(checkouts) > 1 else usual_contenders(options.device)
    named = [parse(name) for name in options.contenders or workload.contenders or usual]
    return [
        (one,)
        if one.engine in {"plain", "peer"}
        else tuple(one.of(checkout) for checkout in checkouts)
        for one in named
        # Without convolutions `plain-cl` is `plain`.
        if workload.convolves or not one.channels_last or one.ranks
    ]


def usual_contenders(device: str) -> list[str]:
    """Every way to write the plain loop for speed on this machine, and flfast's engines."""
    cores = machine.num_cores() if device == "cpu" else 1
    several = [f"plain-{cores}", f"plain-{cores}p"] if cores > 1 else []
    return ["plain-1", "plain-cl", *several, "eager", "fused", "flfast"]


def _pairs(groups: list[Group]) -> list[tuple[str, str]]:
    return [(group[0].name, group[1].name) for group in groups if len(group) > 1]


def _try_out(checkouts: Sequence[Checkout], options: argparse.Namespace) -> None:
    """Run each checkout once, so that its files are compiled, and what cannot run is said now."""
    small = find("W2", pfllib=options.pfllib, quick=True)
    for checkout in checkouts:
        measure(parse("flfast").of(checkout), small, Setting(options.device, 1))


def _entry(workload: Workload, device: str) -> dict[str, Any]:
    fields = asdict(workload)
    fields.pop("root")  # a path of this machine
    synthetic = workload.uneven and workload.root is None
    return {
        "workload": fields,
        "note": "random images of the same sizes" if synthetic else "",
        "samples": workload.samples,
        "steps": workload.steps,
        "data_bytes": workload.data_bytes,
        "floor": measure_floor(workload, device),
        "measured": {},
    }


def _run(
    workload: Workload,
    groups: list[Group],
    options: argparse.Namespace,
    entry: dict[str, Any],
    console: Console,
) -> None:
    rounds = options.rounds or workload.rounds
    setting = Setting(
        options.device, rounds, tuple(options.overrides), pfllib_code=options.pfllib_code
    )
    entry["measured"] = {contender.name: [] for group in groups for contender in group}
    for repeat, contender in interleaved(groups, options.repeats):
        done = measure(contender, workload, setting)
        entry["measured"][contender.name].append(done)
        last = done["rounds"][-1]
        console.print(
            f"{workload.name} · repeat {repeat + 1}/{options.repeats} · {contender.name}: "
            f"train {last['train_s']:.3g} s, evaluate {last['eval_s']:.3g} s",
            highlight=False,
        )
    console.print(report.table(entry))
    for note in report.notes(entry):
        console.print(note)


def interleaved(groups: Sequence[Sequence[T]], repeats: int) -> Iterator[tuple[int, T]]:
    """(repeat, contender) in the order of running, which begins one group further in each repeat.

    A group stays together, and turns around every time: what runs second finds a warmer machine.
    """
    for repeat in range(repeats):
        first = repeat % len(groups)
        for group in (*groups[first:], *groups[:first]):
            for contender in group if repeat % 2 == 0 else reversed(group):
                yield repeat, contender


if __name__ == "__main__":
    main()
