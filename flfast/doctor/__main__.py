"""`python -m flfast.doctor [FOLDER]` says what works on this machine, and what to do where not.

It ends with exit code 0 if a run with the defaults will work in FOLDER (`outputs`), else with 1.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from flfast import train
from flfast.doctor.checks import (
    cuda_graph,
    executor,
    gloo,
    kernels,
    nccl,
    processors,
    versions,
    writable,
)
from flfast.doctor.flops import flops_per_example, peak_flops
from flfast.loggers.table import read_rows
from flfast.models.mlp import mlp

_ROUNDS = 10
_SHAPE = (1, 8, 8)  # of the defaults' data


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        name: of what was checked.
        works: whether it does; None where it is a fact, or nothing that this machine has.
        said: the fact, the reason, or what to do.
        seconds: that the check took.
    """

    name: str
    works: bool | None
    said: str
    seconds: float

    @property
    def word(self) -> str:
        """`works` as one reads it."""
        return {True: "works", False: "fails", None: ""}[self.works]


def examine(folder: Path) -> Iterator[tuple[Finding, bool]]:
    """Every finding, and whether a run with the defaults needs it.

    Args:
        folder: in which runs will lie.
    """
    yield _look("versions", lambda: (None, versions())), False
    yield _look("C++ kernels", kernels), False
    # Before anything touches a GPU: they fork.
    yield _look("gloo", gloo), False
    yield _look("NCCL", nccl), False
    yield _look("executor", executor), False
    writes = _look("run folder", lambda: writable(folder))
    yield writes, True
    yield _look("default run", lambda: _default_run(folder if writes.works else None)), True
    yield _look("processors", lambda: (None, processors())), False
    yield _look("CUDA graphs", cuda_graph), False


def _look(name: str, check: Callable[[], tuple[bool | None, str]]) -> Finding:
    start = time.perf_counter()
    try:
        works, said = check()
    except Exception as error:  # noqa: BLE001 - a finding, whatever it is
        works, said = False, f"{type(error).__name__}: {error}"
    return Finding(name, works, " ".join(said.split()), time.perf_counter() - start)


def _default_run(folder: Path | None) -> tuple[bool, str]:
    """The command with its defaults and a few rounds, in a folder that is gone afterwards."""
    near = folder and next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryDirectory(prefix="flfast-doctor-", dir=near) as place:
        quoted = place.replace("\\", "\\\\").replace("'", "\\'")
        code, message = _command(f"rounds={_ROUNDS}", f"hydra.run.dir='{quoted}'")
        if code:
            return False, message
        last = read_rows(Path(place) / "metrics.csv")[-1]
    rate = float(last["train/samples_per_s"])
    model = mlp(input_shape=_SHAPE, num_classes=10, hidden=[200, 200], dropout=0.0)
    flops, _ = flops_per_example(model, _SHAPE)
    threads, ranks = torch.get_num_threads(), last["plan/devices"]
    peak = peak_flops("cpu")
    return True, (
        f"{rate:,.0f} samples/s, {rate * flops / 1e9:.1f} GFLOP/s, with strategy="
        f"{last['plan/strategy']} on {ranks}; one thread's best matrix product: "
        f"{peak / 1e9:.0f} GFLOP/s (threads of torch: {threads})"
    )


def _command(*overrides: str) -> tuple[int, str]:
    """Exit code of the command, run in this process, and what it said to the user."""
    before = sys.argv
    sys.argv = ["flfast", *overrides]
    # Files, not strings: ranks ask for their number.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
                train.main()
        except SystemExit as stop:
            said.seek(0)
            text = said.read()
            return int(stop.code or 0), text.partition("flfast stops here:")[2] or text
        finally:
            sys.argv = before
    return 0, ""


def main() -> None:
    """Examine, print, and exit with 0 if a run with the defaults will work, else with 1."""
    parser = argparse.ArgumentParser(description="What works here, and what to do where not.")
    parser.add_argument("folder", nargs="?", default="outputs", type=Path, help="of runs")
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    console = Console()
    found = list(examine(folder))
    broken = [finding.name for finding, needed in found if needed and not finding.works]
    _print(console, [finding for finding, _ in found])
    verdict = f"will not work: {', '.join(broken)}" if broken else "will work"
    console.print(f"A run with the defaults {verdict}.", soft_wrap=True)
    sys.exit(bool(broken))


def _print(console: Console, findings: list[Finding]) -> None:
    if not console.is_terminal:
        for name, _, said, seconds, word in ((*f, f.word) for f in findings):
            words = f"{name}: {word} ({seconds:.1f} s) {said}" if word else f"{name}: {said}"
            console.print(words, soft_wrap=True, markup=False, highlight=False)
        return
    table = Table("", "", "s", "", box=None)
    colours = {True: "green", False: "red", None: "default"}
    for finding in findings:
        word = f"[{colours[finding.works]}]{finding.word}[/]"
        table.add_row(finding.name, word, f"{finding.seconds:.1f}", finding.said)
    console.print(table)


if __name__ == "__main__":
    main()
