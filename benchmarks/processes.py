"""A contender's process, watched from outside: its memory, and when round 1 ended. Torch-free."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread

import psutil

from benchmarks.checkouts import HERE, Checkout

POLL_S = 0.02
SHARE = 0.01  # of a core, for measuring memory


class ContenderError(RuntimeError):
    """A contender's process failed."""


@dataclass(frozen=True)
class Ended:
    """What a process left.

    Attributes:
        output: what it wrote.
        started_at: the epoch's seconds at its launch.
        wall_s: seconds from its launch to its end.
        memory_bytes: the most that all its processes held together at any time.
        memory_kind: `PSS`, which counts shared pages once, or `RSS` where the system has no PSS.
        first_row_s: seconds from its launch to the table's second row; None without a table.
    """

    output: str
    started_at: float
    wall_s: float
    memory_bytes: int
    memory_kind: str
    first_row_s: float | None


def run(
    arguments: Sequence[str],
    checkout: Checkout = HERE,
    *,
    table: Path | None = None,
    limit_s: float | None = None,
    python: Sequence[str] = (sys.executable,),
) -> Ended:
    """Run Python to its end.

    Args:
        arguments: after `python`.
        checkout: whose packages it imports.
        table: CSV file to watch, with a row before round 1.
        limit_s: seconds after which it is killed; None is never.
        python: words that start the interpreter.

    Raises:
        ContenderError: if the process fails or is killed, with the end of what it said.
    """
    # Threads are the contender's to choose; a variable would change what torch starts with.
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    # Before an installed flfast.
    known = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    environment["PYTHONPATH"] = os.pathsep.join([str(checkout.root), *known])
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        started_at, start = time.time(), time.perf_counter()
        process = subprocess.Popen(
            [*python, *arguments],
            cwd=checkout.place,
            env=environment,
            stdout=output,
            stderr=errors,
            text=True,
        )
        watch = _Watch(process.pid, table, start)
        code: int | str
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            kill(process)
            code = f"a kill, after {limit_s:.0f} s"
        except BaseException:
            kill(process)
            raise
        finally:
            wall_s = time.perf_counter() - start
            watch.end()
        output.seek(0)
        errors.seek(0)
        said, complaint = output.read(), errors.read()
    if code:
        last = "\n".join((complaint or said).strip().splitlines()[-15:])
        raise ContenderError(f"python {' '.join(arguments)}\nended with {code}:\n{last}")
    return Ended(said, started_at, wall_s, watch.memory, watch.kind, watch.first_row_s)


def kill(process: subprocess.Popen[str]) -> None:
    """End a process with all its children, which would otherwise run on."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


class _Watch(Thread):
    """Looks every few milliseconds, until it is told to end."""

    def __init__(self, pid: int, table: Path | None, start: float) -> None:
        super().__init__(daemon=True)
        self.pid, self.table, self.began = pid, table, start
        self.memory, self.kind = 0, "PSS"
        self.first_row_s: float | None = None
        self._over = Event()
        self.start()

    def run(self) -> None:
        """Until the end."""
        due = 0.0
        while not self._over.wait(POLL_S):
            self._look()
            if time.perf_counter() >= due:
                spent = time.thread_time()
                held, kind = memory(self.pid)
                if held > self.memory:
                    self.memory, self.kind = held, kind
                due = time.perf_counter() + (time.thread_time() - spent) / SHARE
        self._look()  # the last row of a short run

    def end(self) -> None:
        """Stop looking."""
        self._over.set()
        self.join()

    def _look(self) -> None:
        if self.table is None or self.first_row_s is not None:
            return
        with suppress(OSError):
            if self.table.read_bytes().count(b"\n") >= 3:  # names, before round 1, round 1
                self.first_row_s = time.perf_counter() - self.began


def memory(pid: int) -> tuple[int, str]:
    """Bytes that a process and all its children hold, and what was counted: PSS or RSS."""
    try:
        whole = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0, "PSS"
    try:
        return sum(_pss(whole)), "PSS"
    except (FileNotFoundError, PermissionError):  # this system has none, or hides it
        return sum(_rss(whole)), "RSS"


def _pss(pids: Iterable[int]) -> Iterable[int]:
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        try:
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except ProcessLookupError:
            continue
        except FileNotFoundError:
            if folder.exists() or not folder.parent.exists():
                raise
            continue  # it has ended
        yield sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _rss(pids: Iterable[int]) -> Iterable[int]:
    for pid in pids:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            yield psutil.Process(pid).memory_info().rss
