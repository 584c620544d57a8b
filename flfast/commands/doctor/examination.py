"""All checks of this machine, in order, and a line for each."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from flfast.commands.doctor.checks import (
    bytecode,
    cuda_graph,
    executor,
    existing,
    gloo,
    kernels,
    nccl,
    processors,
    versions,
    writable,
)
from flfast.output.results.table import read_rows

_ROUNDS = 10


_VERDICTS = {True: ("works", "green"), False: ("fails", "red"), None: ("", "default")}
"""Word and colour; a check neither works nor fails if this machine lacks the hardware."""


class Check(NamedTuple):
    """Something to find out; `needed` if a run with the defaults needs it."""

    name: str
    examine: Callable[[], tuple[bool | None, str]]
    needed: bool = False


def checks(folder: Path, train: Callable[[], None]) -> list[Check]:
    """All checks, in order; `train` is the training command, which reads `sys.argv`."""

    def default_run() -> tuple[bool, str]:
        works, _ = writable(folder)
        return _default_run(train, existing(folder) if works else None)

    return [
        Check("versions", lambda: (None, versions())),
        Check("bytecode", bytecode),
        # The next two fork, which is impossible after a process has used a GPU.
        Check("gloo", gloo),
        Check("NCCL", nccl),
        Check("run folder", lambda: writable(folder), needed=True),
        Check("processors", lambda: (None, processors())),
        Check("C++ kernels", kernels),
        Check("executor", executor),
        Check("default run", default_run, needed=True),
        Check("CUDA graphs", cuda_graph),
    ]


def _default_run(train: Callable[[], None], parent: Path | None) -> tuple[bool, str]:
    """Run the command with its defaults for a few rounds, in a temporary folder of `parent`."""
    with tempfile.TemporaryDirectory(prefix="flfast-doctor-", dir=parent) as run_dir:
        quoted = run_dir.replace("\\", "\\\\").replace("'", "\\'")
        code, message = _run_command(train, f"rounds={_ROUNDS}", f"hydra.run.dir='{quoted}'")
        if code:
            return False, message
        last = read_rows(Path(run_dir) / "metrics.csv")[-1]
    return True, (
        f"{float(last['train/samples_per_s']):,.0f} samples/s, with strategy="
        f"{last['plan/strategy']} on {last['plan/devices']}"
    )


def _run_command(train: Callable[[], None], *overrides: str) -> tuple[int, str]:
    """Run the command in this process; returns its exit code and its error message."""
    argv = sys.argv
    sys.argv = ["flfast", *overrides]
    # Files, not StringIO: starting ranks needs a file descriptor.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                train()
        except SystemExit as stop:
            errors.seek(0)
            text = errors.read()
            return int(stop.code or 0), text.partition("flfast stops here:")[2] or text
        finally:
            sys.argv = argv
    return 0, ""


def examine(folder: Path, train: Callable[[], None]) -> list[str]:
    """Run all checks and print a line for each as soon as it is known.

    Returns the names of checks that failed and that a run with the defaults needs.
    """
    torch.set_num_threads(1)
    console, broken = Console(), []
    for check in checks(folder, train):
        # Not a spinner: beside its thread ranks are spawned, which takes half a minute.
        console.print(f"{check.name}: ", end="", markup=False, highlight=False)
        sys.stdout.flush()
        start = time.perf_counter()
        try:
            works, message = check.examine()
        except Exception as error:  # noqa: BLE001 - any error is a finding
            works, message = False, f"{type(error).__name__}: {error}"
        word, colour = _VERDICTS[works]
        seconds = f"{word} ({time.perf_counter() - start:.1f} s) " if word else ""
        console.print(seconds, end="", style=colour, highlight=False)
        console.print(" ".join(message.split()), soft_wrap=True, markup=False, highlight=False)
        sys.stdout.flush()
        if check.needed and not works:
            broken.append(check.name)
    return broken
