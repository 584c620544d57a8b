"""Runs a job in a fork of this process, with a limit of time. Torch-free.

All modules are imported once, before the first fork. A job that dies costs only itself: an
illegal address ends the CUDA context of its process, and leaves the others alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.job import Found

GRACE_S = 2.0
"""Seconds in which a job that is stopped may still write what it has found."""

MOST_LOG = 20_000  # characters of a job's output that are kept


def in_a_fork(run: Callable[[Found], None], limit_s: float) -> tuple[Found, str]:
    """Run a job in a fork.

    Returns:
        What it found, with `seconds`, and `error` unless it ended well; and what it wrote.
    """
    with TemporaryDirectory(prefix="flfast-gpu-") as folder:
        log, state = Path(folder) / "log", Path(folder) / "state.json"
        start = time.perf_counter()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            _child(run, log, state)
        status = _ended(pid, start + limit_s)
        stopped = status is None
        if stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)  # it says what it has found, if it can
            status = _ended(pid, time.perf_counter() + GRACE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # what it started, too
        if status is None:
            _, status = os.waitpid(pid, 0)
        found: Found = json.loads(state.read_text()) if state.exists() else {}
        said = log.read_text(errors="replace") if log.exists() else ""
    if stopped:
        found["error"] = f"not done after {limit_s:.0f} s"
    elif not found:
        found["error"] = f"died: exit code {os.waitstatus_to_exitcode(status)}"
    return {**found, "seconds": time.perf_counter() - start}, said[-MOST_LOG:]


def _ended(pid: int, end: float) -> int | None:
    """The status of a process that has ended by then; else None."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.perf_counter() >= end:
            return None
        time.sleep(0.02)


def _child(run: Callable[[Found], None], log: Path, state: Path) -> None:
    """The job, in its process; it never returns."""
    os.setsid()
    signal.signal(signal.SIGTERM, _stop)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    found: Found = {}
    try:
        run(found)
        found["status"] = "passed"
    except BaseException as error:  # noqa: BLE001 - also the exit of a command
        traceback.print_exc()
        lines = str(error).splitlines() or [""]
        found |= {"status": "failed", "error": f"{type(error).__name__}: {lines[0][:300]}"}
    sys.stdout.flush()
    sys.stderr.flush()
    part = state.with_suffix(".part")
    part.write_text(json.dumps(found, default=str))
    part.replace(state)
    os._exit(0)


def _stop(*_: Any) -> None:
    raise TimeoutError("stopped at its limit")
