"""Seeds of one workload: packed, or one command after another: `python -m benchmarks.packed`.

Every contender is the whole command, with imports and everything else that it starts with.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.workloads import WORKLOADS
from flfast.output.results.table import read_rows

CONTENDERS = {
    "single": (),
    "single-1": ("trainer.devices=1",),
    "sweep": (),
    "packed": ("hydra/launcher=packed",),
}
"""Overrides by name. The first two run a command per seed, the others are one sweep."""

_TIMED = ("time/", "train/samples_per_s", "monitor/")


class Cost(NamedTuple):
    """What all seeds of a contender took.

    Attributes:
        wall_s: from the first command's start to the last one's end.
        cpu_s: processor time of all processes.
    """

    wall_s: float
    cpu_s: float


def measure(name: str, overrides: list[str], seeds: range, folder: Path) -> Cost:
    """Run a contender; seed s leaves its tables in `folder / str(s)`."""
    words = [*overrides, *CONTENDERS[name]]
    before, start = os.times(), time.monotonic()
    if name.startswith("single"):
        for seed in seeds:
            _command(*words, f"seed={seed}", f"hydra.run.dir={folder / str(seed)}")
    else:
        listed = ",".join(map(str, seeds))
        _command("-m", *words, f"seed={listed}", f"hydra.sweep.dir={folder}")
    wall, after = time.monotonic() - start, os.times()
    cpu = after.children_user + after.children_system
    return Cost(wall, cpu - before.children_user - before.children_system)


def _command(*words: str) -> None:
    command = [sys.executable, "-m", "flfast.train", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def numbers(folder: Path) -> list[dict[str, str]]:
    """Rows of a run without columns of time, of the machine, and of its ranks."""
    rows = read_rows(folder / "metrics.csv")
    kept = (name for name in rows[0] if not name.startswith((*_TIMED, "plan/")))
    names = list(kept)
    return [{name: row[name] for name in names} for row in rows]


def main() -> None:
    """Print a row for each repeat and contender; write all of them to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="W4", choices=sorted(WORKLOADS))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, help="default: those of the workload, and one more")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", default=[*CONTENDERS], choices=[*CONTENDERS])
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()
    workload, seeds = WORKLOADS[options.workload], range(options.seeds)
    rounds = options.rounds or workload.rounds + 1
    overrides = [*workload.flfast_overrides(device="cpu", rounds=rounds), "callbacks=quiet"]
    found: dict[str, list[Cost]] = {name: [] for name in options.contenders}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            for name in options.contenders:
                place = Path(folder, f"{repeat}-{name}")
                cost = measure(name, overrides, seeds, place)
                found[name].append(cost)
                line = f"{name:8}  {cost.wall_s:6.1f} s  {cost.cpu_s:6.1f} s of processor time"
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
        if {"single-1", "packed"} <= found.keys():
            alone, packed = (Path(folder, f"0-{name}") for name in ("single-1", "packed"))
            same = all(numbers(alone / str(s)) == numbers(packed / str(s)) for s in seeds)
            sys.stdout.write(f"numbers of packed and single-1: {'' if same else 'not '}equal\n")
    if options.output:
        costs = {name: [cost._asdict() for cost in each] for name, each in found.items()}
        facts = {"workload": options.workload, "seeds": options.seeds, "rounds": rounds}
        options.output.write_text(json.dumps({**facts, "contenders": costs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
