"""Jobs one after the other, each in a fork with a limit of time; results are there after each.

    python -m benchmarks.gpu --budget 210                  # does it run, and where is the time?
    python -m benchmarks.gpu --budget 430 --after "W1 plain"   # the rest
    python -m benchmarks.gpu --device cpu --only W3        # tries jobs without a GPU

The folder then holds `summary.md`, `results.json`, `logs.txt`, `profile.txt` and `pytest.txt`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

# CUDA must not begin in this process: jobs are forks of it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

from benchmarks import machine
from benchmarks.checkouts import ROOT
from benchmarks.gpu.forks import in_a_fork
from benchmarks.gpu.job import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.job import Job

LEAST_S = 12  # in which a job may find something
CPU_TIMES = 20  # limits on a CPU, where every job is slower


def main() -> None:
    """Run jobs; exit code 1 if one fails or has no time, or two that compute the same differ."""
    began = time.perf_counter()
    options = arguments()
    from benchmarks.gpu.jobs import JOBS  # with torch and all that jobs need, once
    from benchmarks.gpu.page import LOGS, line, other_numbers, write

    chosen = _chosen(JOBS, options)
    if options.list:
        sys.stdout.writelines(f"{job.limit_s:4.0f} s  {job.name}\n" for job in chosen)
        return
    folder = options.out or ROOT / "benchmarks" / "results" / _name(options.device)
    folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(options.device, folder)
    results = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "device": options.device,
        "jobs": _earlier(folder),
    }
    _say(f"imports took {time.perf_counter() - began:.0f} s; {len(chosen)} jobs")
    for job in chosen:
        left = options.budget - (time.perf_counter() - began)
        if left < min(job.limit_s, LEAST_S):
            _say(f"{job.name}: no time left")
            continue
        limit = job.limit_s * (1 if setting.cuda else CPU_TIMES)
        found, said = in_a_fork(partial(job.run, setting), min(limit, left))
        results["jobs"][job.name] = found
        with (folder / LOGS).open("a") as file:
            file.write(f"\n===== {job.name}\n{said}\n")
        write(results, folder, JOBS)
        _say(line(job.name, found))
    differing = other_numbers(results["jobs"], JOBS)
    for said in differing:
        _say(f"other numbers: {said}")
    _say(f"{time.perf_counter() - began:.0f} s; written: {folder}")
    ended = [results["jobs"].get(job.name, {}).get("status") for job in chosen]
    sys.exit(int(bool(differing) or any(status != "passed" for status in ended)))


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Show in minutes that flfast works on this GPU, and where its time goes.",
    )
    add = parser.add_argument
    add("--budget", type=float, default=520, help="seconds for all jobs")
    add("--after", default="", metavar="JOB", help="only jobs after this one")
    add("--only", nargs="+", metavar="JOB", help="only these jobs")
    add("--out", type=Path, help="folder; default: benchmarks/results/gpu-DATE-CHIP")
    add("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: only to try the jobs")
    add("--list", action="store_true", help="list the jobs with their limits, and end")
    return parser.parse_args(argv)


def _chosen(jobs: Sequence[Job], options: argparse.Namespace) -> list[Job]:
    """Jobs that the command names; exit code 1 if it names one that there is not."""
    chosen = [job for job in jobs if options.device == "cuda" or not job.only_cuda]
    if options.after:
        names = [job.name for job in chosen]
        if options.after not in names:
            sys.exit(f"--after {options.after}: no such job; allowed: {', '.join(names)}")
        chosen = chosen[names.index(options.after) + 1 :]
    if options.only:
        unknown = {*options.only} - {job.name for job in chosen}
        if unknown:
            sys.exit(f"--only {sorted(unknown)[0]}: no such job; --list has their names")
        chosen = [job for job in chosen if job.name in options.only]
    return chosen


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _earlier(folder: Path) -> dict[str, Any]:
    """What the folder's jobs of an earlier command found."""
    path = folder / "results.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))["jobs"]) if path.is_file() else {}


def _name(device: str) -> str:
    chips = machine.gpu_names() if device == "cuda" else []
    chip = re.sub(r"[^a-z0-9]+", "-", (chips or [device])[0].lower()).strip("-")
    return f"gpu-{datetime.datetime.now(datetime.timezone.utc):%Y%m%d}-{chip}"


if __name__ == "__main__":
    main()
