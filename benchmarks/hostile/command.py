"""Runs a command in a forked process, and says how it ended."""

import importlib
import io
import multiprocessing
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE_S = 120
"""A command that takes longer hangs; the runs here take seconds."""

MESSAGE = 2
"""Exit code of a command that refuses a setting."""

_FORK = multiprocessing.get_context("fork")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        code: its exit code; None if it hung and was killed.
        said: what it wrote to the screen.
    """

    code: int | None
    said: str

    @property
    def verdict(self) -> str:
        """`done`, `message`, `traceback`, `hang`, or the code."""
        if self.code is None:
            return "hang"
        if _TRACEBACK.search(self.said):
            return "traceback"
        return {0: "done", MESSAGE: "message"}.get(self.code, f"exit {self.code}")


def prepare() -> None:
    """Import once what every forked command needs."""
    for module in ("flfast.setup.launch", "flfast.setup.opened_run", "sklearn.datasets"):
        importlib.import_module(module)
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)


def run(main: Callable[[], None], words: list[str], folder: Path) -> Ended:
    """Run a command with these words in a process of its own.

    Args:
        main: of the command, such as `flfast.train.main`.
        words: of the command line.
        folder: in which it runs; what it writes to the screen is kept there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / "screen.txt"
    process = _FORK.Process(target=_run, args=(main, words, folder, said))
    process.start()
    process.join(PATIENCE_S)
    if process.exitcode is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return Ended(None, said.read_text(errors="replace"))
    return Ended(process.exitcode, said.read_text(errors="replace"))


def _run(main: Callable[[], None], words: list[str], folder: Path, said: Path) -> None:
    os.setpgid(0, 0)
    os.chdir(folder)
    output = os.open(said, os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdin = io.StringIO()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    sys.path.insert(0, str(folder))  # noqa: TID251 - as of `python -m` in this folder
    sys.argv = ["flfast", *words]
    try:
        main()
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 - the screen of a person would show any
        sys.stderr.write(traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)
