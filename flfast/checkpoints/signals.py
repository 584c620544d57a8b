"""Signals that ask a run to stop, and how it says that it did. Torch-free."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

EXIT_STOPPED = 75
"""Exit code of a run that was told to stop and can go on: EX_TEMPFAIL of sysexits.h."""

NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")


class StoppedError(SystemExit):
    """Ends the process, sweeps included, with `EXIT_STOPPED`."""

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)


class StopRequests:
    """Within its block, SIGTERM, SIGINT and SIGUSR1 ask for an end, and do nothing else.

    A second signal ends a process that is alone at once. Ranks wait for whoever started them.
    SIGUSR1, of which SLURM can give warning, is left to others who use it.

    Attributes:
        asked: name of the first signal; None before.

    Args:
        alone: whether nobody else counts the signals.
        names: of the signals.
    """

    def __init__(self, *, alone: bool, names: Sequence[str] = NAMES) -> None:
        self.received: str | None = None
        self._alone, self._names = alone, names
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for name in self._names:
                number = getattr(signal, name, None)
                if number is None or (name == "SIGUSR1" and _used(number)):
                    continue
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a worker that was forked from here
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.received is None:
            self.received = signal.Signals(number).name
            self.first()
        elif self._alone:
            self.second()
            os._exit(128 + number)

    def first(self) -> None:
        """What the first signal does beside being noted."""
        if self._alone:
            _say(f"{self.received}: stopping after this round; again stops at once\n")

    def second(self) -> None:
        """What the second one does before the process ends."""


class StopRanks(StopRequests):
    """The same for a process whose children are ranks; they are told by SIGUSR1, or killed.

    Args:
        note: file that says so to ranks that have yet to start.
    """

    def __init__(self, note: Path) -> None:
        super().__init__(alone=True)
        self._note = note

    def first(self) -> None:
        """Hand it on."""
        super().first()
        self._note.touch()
        for pid in [child.pid for child in multiprocessing.active_children() if child.pid]:
            os.kill(pid, signal.SIGUSR1)

    def second(self) -> None:
        """Leave no rank behind."""
        for child in multiprocessing.active_children():
            child.kill()


def _used(number: int) -> bool:
    return signal.getsignal(number) is not signal.SIG_DFL


def _say(text: str) -> None:
    # A log could be in the midst of a line.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
