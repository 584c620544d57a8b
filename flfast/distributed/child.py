"""The first steps of every process that is started for a run. Torch-free.

A forked process has all objects of its parent, but none of its threads. It must not destroy what
it inherited: a store or a process group would wait for its thread, or crash.
"""

import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from flfast.state.output_streams import surviving_output

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_KILL = int(signal.SIGKILL) if sys.platform != "win32" else 9


def start_child(process: BaseProcess) -> None:
    """Start a process whose function begins with `begin_child`.

    No garbage is collected from the fork until then.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        process.start()
    finally:
        if enabled:
            gc.enable()


def begin_child(parent: int) -> None:
    """Keep all inherited objects for ever, and end this process when its parent ends."""
    gc.freeze()
    gc.enable()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _KILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
    else:
        threading.Thread(
            target=_watch, args=(parent,), name="end-with-parent", daemon=True
        ).start()


def _watch(parent: int, every_s: float = 0.2) -> None:
    while os.getppid() == parent:
        time.sleep(every_s)
    os._exit(1)  # nobody is left to hear of an exception


class WatchedName(str):
    """Name of a process to be spawned, which ends with its parent from the first import on.

    `multiprocessing` sends the name ahead of everything for which the new process imports modules,
    and those imports take seconds. The name is sent as an expression of the standard library,
    since this package may not be on the new process's path yet.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Set the death signal while the name is read, and look whether the parent lives."""
        if sys.platform != "linux":
            return str, (str(self),)
        return eval, (
            f"__import__('ctypes').CDLL(None).prctl({_PR_SET_PDEATHSIG}, {_KILL}) == 0"
            f" and __import__('os').getppid() == {os.getpid()}"
            f" and {str(self)!r} or __import__('os')._exit(1)",
        )


class Work:
    """A function and its arguments; a spawned process imports their modules when it calls it."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._parts: Any = fn, args

    def __getstate__(self) -> bytes:
        """The function and its arguments, pickled on their own."""
        return bytes(ForkingPickler.dumps(self._parts))

    def __setstate__(self, pickled: bytes) -> None:
        """Keep the bytes until the call."""
        self._parts = pickled

    def __call__(self) -> Any:
        """Call the function."""
        parts = self._parts
        fn, args = pickle.loads(parts) if isinstance(parts, bytes) else parts
        return fn(*args)


def run_rank(pipe: Connection, parent: int, environment: dict[str, str], work: Work) -> None:
    """Run a rank in this process, which was started for it.

    The pipe gets, pickled, the result and None, or None and a line about the exception.
    """
    begin_child(parent)
    os.environ |= environment
    try:
        with surviving_output():
            # Not `send`, by which tensors would stay in shared memory of this process, which ends.
            pipe.send_bytes(pickle.dumps((work(), None)))
    except Exception as error:  # noqa: BLE001 - the launcher says so
        lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
        pipe.send((None, lines[-1]))
