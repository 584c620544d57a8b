"""`python -m flfast.doctor [FOLDER]` checks what works on this machine, and how to fix the rest.

Exit code 0 if a run with the defaults works in FOLDER (default: `outputs`), else 1.
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
    bytecode,
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
from flfast.models.mlp import mlp
from flfast.output_streams import surviving_output
from flfast.results.table import read_rows

_ROUNDS = 10
_SHAPE = (1, 8, 8)  # of the default data


class Finding(NamedTuple):
    """The result of a check.

    Attributes:
        name: name of the check.
        works: whether it passed; None for information, or hardware that this machine lacks.
        message: information, or the reason and how to fix it.
        seconds: duration of the check.
    """

    name: str
    works: bool | None
    message: str
    seconds: float

    @property
    def verdict(self) -> str:
        """`works` as a word."""
        return {True: "works", False: "fails", None: ""}[self.works]


def examine(folder: Path) -> Iterator[tuple[Finding, bool]]:
    """Run all checks.

    Args:
        folder: folder for runs.

    Returns:
        Each finding, and whether a run with the defaults needs it to work.
    """
    yield _run_check("versions", lambda: (None, versions())), False
    yield _run_check("bytecode", bytecode), False
    yield _run_check("C++ kernels", kernels), False
    # The next two fork, which is impossible after a process has used a GPU.
    yield _run_check("gloo", gloo), False
    yield _run_check("NCCL", nccl), False
    yield _run_check("executor", executor), False
    writes = _run_check("run folder", lambda: writable(folder))
    yield writes, True
    yield _run_check("default run", lambda: _default_run(folder if writes.works else None)), True
    yield _run_check("processors", lambda: (None, processors())), False
    yield _run_check("CUDA graphs", cuda_graph), False


def _run_check(name: str, check: Callable[[], tuple[bool | None, str]]) -> Finding:
    start = time.perf_counter()
    try:
        works, message = check()
    except Exception as error:  # noqa: BLE001 - any error is a finding
        works, message = False, f"{type(error).__name__}: {error}"
    return Finding(name, works, " ".join(message.split()), time.perf_counter() - start)


def _default_run(folder: Path | None) -> tuple[bool, str]:
    """Run the command with its defaults for a few rounds, in a temporary folder."""
    parent = folder and next(p for p in (folder, *folder.absolute().parents) if p.exists())
    with tempfile.TemporaryDirectory(prefix="flfast-doctor-", dir=parent) as run_dir:
        quoted = run_dir.replace("\\", "\\\\").replace("'", "\\'")
        code, message = _run_command(f"rounds={_ROUNDS}", f"hydra.run.dir='{quoted}'")
        if code:
            return False, message
        last = read_rows(Path(run_dir) / "metrics.csv")[-1]
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


def _run_command(*overrides: str) -> tuple[int, str]:
    """Run the command in this process; returns its exit code and its error message."""
    argv = sys.argv
    sys.argv = ["flfast", *overrides]
    # Files, not StringIO: starting ranks needs a file descriptor.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                train.main()
        except SystemExit as stop:
            errors.seek(0)
            text = errors.read()
            return int(stop.code or 0), text.partition("flfast stops here:")[2] or text
        finally:
            sys.argv = argv
    return 0, ""


@surviving_output()
def main() -> None:
    """Run all checks, print the findings, and exit."""
    parser = argparse.ArgumentParser(
        description="Check what works on this machine, and how to fix the rest."
    )
    parser.add_argument(
        "folder", nargs="?", default="outputs", type=Path, help="folder for runs (outputs)"
    )
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    console = Console()
    results = list(examine(folder))
    broken = [finding.name for finding, needed in results if needed and not finding.works]
    _print(console, [finding for finding, _ in results])
    verdict = f"will not work: {', '.join(broken)}" if broken else "will work"
    console.print(f"A run with the defaults {verdict}.", soft_wrap=True)
    sys.exit(bool(broken))


def _print(console: Console, findings: list[Finding]) -> None:
    if not console.is_terminal:
        for f in findings:
            result = f"{f.verdict} ({f.seconds:.1f} s) " if f.verdict else ""
            line = f"{f.name}: {result}{f.message}"
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        return
    table = Table("", "", "s", "", box=None)
    colours = {True: "green", False: "red", None: "default"}
    for finding in findings:
        verdict = f"[{colours[finding.works]}]{finding.verdict}[/]"
        table.add_row(finding.name, verdict, f"{finding.seconds:.1f}", finding.message)
    console.print(table)


if __name__ == "__main__":
    main()
