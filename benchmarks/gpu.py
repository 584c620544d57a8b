"""All that has to be shown on a first GPU: `python -m benchmarks.gpu`, 25 minutes at most.

Parts run one after the other, each in a process of its own with a limit of time, so that one that
fails or hangs does not stop the others. The folder then holds `summary.md`, `results.json`,
`logs.txt`, a picture and a profile; it is up to date after every part.

    python -m benchmarks.gpu --parts graphs-off stacks --out FOLDER

runs these parts alone, and keeps what is in the folder of the others.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import machine, processes
from benchmarks.checkouts import ROOT
from benchmarks.gpu_parts import PARTS, Task
from benchmarks.gpu_summary import write

MOST_LOG = 2**20  # characters of a part's log


def main() -> None:
    """Run parts; exit code 1 if one did not pass."""
    options = arguments()
    if options.inside:
        _run_inside(options)
        return
    folder = options.out or ROOT / "benchmarks" / "results" / _name(options.device)
    folder.mkdir(parents=True, exist_ok=True)
    result = _earlier(folder)
    result |= {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "options": {"device": options.device, "quick": options.quick},
    }
    end = time.perf_counter() + 60 * options.minutes
    scale = 60 * options.minutes / sum(PARTS[name].seconds for name in options.parts)
    for position, name in enumerate(options.parts):
        later = sum(PARTS[other].seconds for other in options.parts[position + 1 :])
        # What earlier parts did not need is this one's.
        limit_s = end - time.perf_counter() - later * scale
        sys.stdout.write(f"{name}: {PARTS[name].title}, at most {limit_s:.0f} s\n")
        sys.stdout.flush()
        result["parts"][name] = run_part(_inside(name, options, folder), limit_s)
        write(result, folder)
        sys.stdout.write(f"{name}: {result['parts'][name]['status']}\n")
    sys.stdout.write(f"written: {folder}\n")
    sys.exit(any(result["parts"][name]["status"] != "passed" for name in options.parts))


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Show in one command that flfast works and is fast on this GPU.",
        epilog=" · ".join(f"{name}: {part.title}" for name, part in PARTS.items()),
    )
    add = parser.add_argument
    add("--parts", nargs="+", default=[*PARTS], choices=PARTS, metavar="PART", help="default: all")
    add("--out", type=Path, help="folder; default: benchmarks/results/gpu-DATE-CHIP")
    add("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: only to try the command")
    add("--quick", action="store_true", help="a twentieth of the work; always so on the CPU")
    add("--minutes", type=float, default=25, help="in which all parts have to end")
    add("--inside", nargs=2, metavar=("STATE", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.quick = options.quick or options.device == "cpu"
    return options


def run_part(command: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Run a part's process to its end, or end it.

    Args:
        command: after `python`; `{state}` stands for the file that it keeps its findings in,
            `{seconds}` for the limit.
        limit_s: seconds that it has.

    Returns:
        What it found, with `status` (`passed`, `failed`, `timed out`, `crashed`), `seconds`, and
        its `log`.
    """
    found: dict[str, Any] = {"failures": [], "notes": [], "workloads": [], "published": []}
    with TemporaryDirectory(prefix="flfast-gpu-") as folder:
        state, log = Path(folder) / "state.json", Path(folder) / "log.txt"
        known = {"{state}": str(state), "{seconds}": f"{limit_s:.1f}"}
        words = [known.get(word, word) for word in command]
        start = time.perf_counter()
        with log.open("w") as output:
            options: Any = {"stdout": output, "stderr": subprocess.STDOUT, "text": True}
            process = subprocess.Popen([sys.executable, *words], cwd=ROOT, **options)
            code = _ended(process, limit_s)
        if state.is_file():
            found = json.loads(state.read_text(encoding="utf-8"))
        said = log.read_text(encoding="utf-8", errors="replace")
    if code is None:
        status = "timed out"
    elif code:
        status = "crashed"
    else:
        status = "failed" if found["failures"] else "passed"
    seconds = time.perf_counter() - start
    return {**found, "status": status, "seconds": seconds, "log": said[-MOST_LOG:]}


def _ended(process: subprocess.Popen[str], limit_s: float) -> int | None:
    """A process's exit code; None if it had to be ended, with all that it started."""
    try:
        return process.wait(max(limit_s, 0.1))
    except BaseException as error:
        processes.kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


def _inside(name: str, options: argparse.Namespace, folder: Path) -> list[str]:
    words = ["-m", "benchmarks.gpu", "--parts", name, "--out", str(folder)]
    words += ["--device", options.device, *(["--quick"] if options.quick else [])]
    return [*words, "--inside", "{state}", "{seconds}"]


def _run_inside(options: argparse.Namespace) -> None:
    """The part itself, in its own process."""
    (name,) = options.parts
    state, seconds = Path(options.inside[0]), float(options.inside[1])
    task = Task(options.device, options.quick, seconds, options.out, state)
    task.save()
    PARTS[name].run(task)
    task.save()


def _earlier(folder: Path) -> dict[str, Any]:
    path = folder / "results.json"
    parts = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.is_file() else {}
    return {"parts": parts}


def _name(device: str) -> str:
    chips = machine.gpu_names() if device == "cuda" else []
    chip = re.sub(r"[^a-z0-9]+", "-", (chips or [device])[0].lower()).strip("-")
    return f"gpu-{datetime.datetime.now(datetime.timezone.utc):%Y%m%d}-{chip}"


if __name__ == "__main__":
    main()
