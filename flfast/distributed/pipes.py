"""Messages between the ranks of one machine: a pipe from every rank to every other one.

A message wakes up the rank that waits for it. One through gloo wakes up a thread, which then wakes
up the rank.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOM = 2**20
"""Bytes that a pipe shall have room for: the most that Linux gives to any user."""

LONGEST_S = 2**31 // 1000
"""Seconds that the system waits at most: milliseconds in 32 bits."""

MOST_RANKS = 16
"""Every rank sends all that it sums to every other one; among many, a ring sends less."""

PAGE = 4096
"""Bytes of a page of memory, of which a pipe may leave one empty beside each message."""


class Pipes:
    """A rank's ends of the pipes; `connected` makes them.

    Args:
        rank: of this process.
        ends: the one that reads what another rank sends, and the one that sends to it, by rank.
        most: bytes of the longest message.
        timeout_s: seconds to wait for another rank.
    """

    def __init__(
        self,
        rank: int,
        ends: dict[int, tuple[Connection, Connection]],
        *,
        most: int,
        timeout_s: float,
    ) -> None:
        self._rank, self._ends = rank, ends
        self._most, self._timeout_s = most, min(timeout_s, LONGEST_S)

    def exchange(self, message: bytes) -> list[bytes] | None:
        """Every rank's message, by rank; None if one is empty or too long; collective.

        Sending waits for nobody: a pipe has room for two messages, and a rank sends the next one
        only when it has those of all others.

        Raises:
            RuntimeError: if another rank has ended, or sends nothing in time.
        """
        messages = {self._rank: message if len(message) <= self._most else b""}
        try:
            for rank, (_, sender) in self._ends.items():  # noqa: B007 - for the message
                sender.send_bytes(messages[self._rank])
            for rank, (receiver, _) in self._ends.items():
                if not receiver.poll(self._timeout_s):
                    raise RuntimeError(f"rank {rank} sends nothing for {self._timeout_s:g} s")
                messages[rank] = receiver.recv_bytes()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"rank {rank} has ended") from error
        return [messages[rank] for rank in sorted(messages)] if all(messages.values()) else None


def connected(
    rank: int, size: int, gather: Callable[[Any], list[Any]], *, timeout_s: float
) -> Pipes | None:
    """Pipes between all ranks; collective. None if they are not all on one machine with Linux.

    Also None if they are many. `gather` gathers a value of every rank.
    """
    if sys.platform != "linux" or size > MOST_RANKS:
        return None
    own = {other: os.pipe() for other in range(size) if other != rank}
    receivers = {other: Connection(end, writable=False) for other, (end, _) in own.items()}
    offers = gather({other: _offer(end) for other, (_, end) in own.items()})
    senders = {other: _opened(*offers[other][rank]) for other in own}
    rooms = gather(min(map(_room, senders.values())))  # every rank has opened its ends
    for _, end in own.values():
        os.close(end)  # the reader would not notice that the other rank has ended
    if 0 in rooms:
        return None
    ends = {other: (receivers[other], sender) for other, sender in senders.items() if sender}
    return Pipes(rank, ends, most=min(rooms) // 2 - 2 * PAGE, timeout_s=timeout_s)


def _offer(end: int) -> tuple[str, str]:
    """Where another process finds the end of a pipe, and the pipe's name on this machine."""
    path = Path(f"/proc/{os.getpid()}/fd/{end}")
    return str(path), str(path.readlink())


def _opened(path: str, pipe: str) -> Connection | None:
    """The end of another process's pipe; None if it is not there, as on another machine."""
    with suppress(OSError):
        sender = Connection(os.open(path, os.O_WRONLY | os.O_NONBLOCK), readable=False)
        if str(Path(f"/proc/self/fd/{sender.fileno()}").readlink()) == pipe:
            os.set_blocking(sender.fileno(), True)
            return sender
    return None


def _room(sender: Connection | None) -> int:
    """Bytes that a pipe holds, as many as are allowed; 0 without one."""
    if sender is None:
        return 0
    import fcntl  # where there is none, there is no sender

    with suppress(OSError):  # a user may have few large pipes
        fcntl.fcntl(sender.fileno(), fcntl.F_SETPIPE_SZ, ROOM)
    return fcntl.fcntl(sender.fileno(), fcntl.F_GETPIPE_SZ)
