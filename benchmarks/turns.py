"""What options cost: `python -m benchmarks.turns W3 compression=quantize "privacy=central ..."`.

Runs with and without the options go side by side, and take turns round by round: only one of them
computes at any time. A machine that becomes slower for a while so slows all of them alike, and
differences of a few percent can be seen.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from benchmarks.checkouts import ROOT
from benchmarks.workload import Workload
from benchmarks.workloads import WORKLOADS

if TYPE_CHECKING:
    from flfast.federation.loop import Federation

WARM_UP = 2
"""Rounds that are not counted: the first ones trace and compile."""


class Turns(Callback):
    """Lets a run compute only when it is its turn, and writes what each round took.

    Turns pass through named pipes `0` to `of - 1` in a folder, one byte each.

    Args:
        place: of this run in the ring.
        of: number of runs.
        folder: of the pipes; round times go to `PLACE.txt`, seconds of processor time.
    """

    def __init__(self, *, place: int, of: int, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)
        # Open for both: neither end waits for the other.
        self._mine = os.open(self._folder / str(place), os.O_RDWR)
        self._next = os.open(self._folder / str((place + 1) % of), os.O_RDWR)
        self._seconds = self._folder / f"{place}.txt"
        self._start = 0.0

    def on_round_end(
        self,
        federation: "Federation",
        row: Mapping[str, Any],
        clients: Mapping[int, Any],
    ) -> None:
        """Note the time since the last turn, let the next run compute, and wait."""
        if row["round"]:
            with self._seconds.open("a") as file:
                file.write(f"{time.process_time() - self._start}\n")
            os.write(self._next, b"x")
        if row["round"] < federation.rounds:
            os.read(self._mine, 1)
        self._start = time.process_time()


def measure(
    workload: Workload, options: Sequence[str], *, rounds: int, folder: Path
) -> list[list[float]]:
    """Seconds of processor time of each round, of a run without options and of one with each.

    Args:
        workload: what all of them run.
        options: of one run each, overrides with spaces between them.
        rounds: that count.
        folder: for the runs; empty.

    Raises:
        subprocess.CalledProcessError: if a run fails.
    """
    runs = ["", *options]
    for place in range(len(runs)):
        os.mkfifo(folder / str(place))
    commands = [_command(workload, words.split(), rounds + WARM_UP) for words in runs]
    started: list[subprocess.Popen[bytes]] = []
    with (folder / "0").open("r+b", buffering=0) as first:
        first.write(b"x")
        try:
            for place, command in enumerate(commands):
                turns = f"{{_target_: benchmarks.turns.Turns, place: {place}, of: {len(runs)}, "
                words = (
                    f"+callbacks.turns={turns}folder: {folder}}}",
                    f"hydra.run.dir={folder}/{place}-run",
                )
                started.append(
                    subprocess.Popen([*command, *words], cwd=ROOT, stdout=subprocess.DEVNULL)
                )
            while any(process.poll() is None for process in started):
                _check(started)  # the others would wait for one that has failed
                time.sleep(0.1)
            _check(started)
        finally:
            for process in started:
                process.kill()
                process.wait()
    tables = [folder / f"{place}.txt" for place in range(len(runs))]
    return [[*map(float, table.read_text().split())][WARM_UP:] for table in tables]


def _check(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        if process.poll():
            raise subprocess.CalledProcessError(process.returncode, process.args)


def _command(workload: Workload, words: list[str], rounds: int) -> list[str]:
    return [
        *(sys.executable, "-m", "flfast.train", "--config-dir", str(ROOT / "benchmarks" / "conf")),
        *workload.flfast_overrides(device="cpu", rounds=rounds),
        *("strategy=single", "threads=1", "callbacks=none", "checkpoint.every=0"),
        f"eval_every={rounds}",
        *words,
    ]


def table(options: Sequence[str], seconds: list[list[float]]) -> list[str]:
    """Markdown: a line for each run, with the median of the ratios to the run without options."""
    lines = ["| Options | median round, s | least, s | times |", "|---|---|---|---|"]
    for name, own in zip(["none", *options], seconds, strict=True):
        ratio = median(a / b for a, b in zip(own, seconds[0], strict=True))
        lines.append(f"| `{name}` | {median(own):.3f} | {min(own):.3f} | {ratio:.2f} |")
    return lines


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("options", nargs="+", help="overrides of one run each")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    # As after Ctrl-C, the runs end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with TemporaryDirectory() as folder:
        seconds = measure(
            WORKLOADS[given.workload], given.options, rounds=given.rounds, folder=Path(folder)
        )
    sys.stdout.write("\n".join([*table(given.options, seconds), ""]))


if __name__ == "__main__":
    main()
