"""Requests to stop: signals, and the errors that end a run then. Torch-free."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Literal

NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")

EXIT_STOPPED = 75
"""Exit code of a run that was stopped and can be resumed: EX_TEMPFAIL of sysexits.h."""


Second = Literal["exit", "raise", "ignore"]
"""Effect of a second signal: exit at once, raise `KeyboardInterrupt`, or nothing."""


_unserved: list[int] = []
"""Signals that runs recorded too late to stop for them."""


class StoppedError(SystemExit):
    """Ends the process with `EXIT_STOPPED`, and with it the rest of a sweep."""

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)


class StoppedAtEndError(StoppedError):
    """A request to stop came in the last round, so that the run finished."""

    def __init__(self, value: float | None) -> None:
        super().__init__()
        self.value = value


@contextmanager
def signals_afterwards() -> Iterator[None]:
    """Context of a run in a program, which gets a signal that came too late for the run then."""
    _unserved.clear()
    try:
        yield
    finally:
        for number in _unserved:
            signal.raise_signal(number)


class StopRequests:
    """Context in which SIGTERM, SIGINT and SIGUSR1 are recorded as requests to stop.

    SLURM can send SIGUSR1 before a job's time limit. If the process already has a handler for
    SIGUSR1, that handler stays. Ranks ignore a second signal: their launcher counts the signals
    and kills them.

    Attributes:
        received: name of the first signal; None before.
    """

    def __init__(self, *, second: Second, names: Sequence[str] = NAMES) -> None:
        self.received: str | None = None
        self._second, self._names = second, names
        self._pid = os.getpid()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for name in self._names:
                number = getattr(signal, name, None)
                if number is None:
                    continue
                if name == "SIGUSR1" and signal.getsignal(number) is not signal.SIG_DFL:
                    continue
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        served = isinstance(error, (StoppedError, KeyboardInterrupt))
        served &= not isinstance(error, StoppedAtEndError)
        if self.received is not None and not served:
            _unserved.append(getattr(signal, self.received))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # in a forked worker, which inherits this handler
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.received is None:
            self.received = signal.Signals(number).name
            self.on_first()
        elif self._second != "ignore":
            self.on_second()
            if self._second == "raise":
                raise KeyboardInterrupt
            os._exit(128 + number)

    def on_first(self) -> None:
        """Called at the first signal."""
        if self._second != "ignore":
            _write_stderr(
                f"{self.received}: stopping after this round; a second signal stops at once\n"
            )

    def on_second(self) -> None:
        """Called at the second signal, before the run ends at once."""


class StopRanks(StopRequests):
    """`StopRequests` for a launcher: passes the request on to its child processes, the ranks.

    The file `note` tells ranks which have not started yet to stop.
    """

    def __init__(self, note: Path, *, second: Second) -> None:
        super().__init__(second=second)
        self._note = note

    def on_first(self) -> None:
        """Send SIGUSR1 to all ranks, and write the note."""
        super().on_first()
        self._note.touch()
        for pid in [child.pid for child in multiprocessing.active_children() if child.pid]:
            os.kill(pid, signal.SIGUSR1)

    def on_second(self) -> None:
        """Kill all ranks."""
        for child in multiprocessing.active_children():
            child.kill()


def _write_stderr(text: str) -> None:
    # Not sys.stderr, which is not reentrant: the signal may have interrupted a write to it.
    with suppress(OSError):  # a screen that fails does not stop the run otherwise
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
