"""Standard output and error that may fail without stopping a command. Torch-free."""

import errno
import io
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("stdout", "stderr")


@contextmanager
def surviving_output() -> Iterator[None]:
    """Context in which writing to `sys.stdout` and `sys.stderr` never raises.

    After its first failure a stream shows nothing more. What was wrong is said at the end on the
    stream that is left, except for a closed pipe: `| head -1` has what it asked for. Streams that
    are not files, such as a notebook's or pytest's, are left as they are, and so are closed ones.
    """
    before = {name: getattr(sys, name) for name in _NAMES}
    streams = {name: _surviving(stream) for name, stream in before.items()}
    for name, stream in streams.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in streams.items():
            if stream is not before[name]:
                stream.flush()
        for name, stream in streams.items():
            error = _failure(stream)
            if error is not None and error.errno != errno.EPIPE and sys.stderr is not None:
                sys.stderr.write(f"flfast: {name}: {error.strerror}; output is missing there\n")
                sys.stderr.flush()
        for name, stream in before.items():
            setattr(sys, name, stream)


def output_is_read() -> bool:
    """Whether standard output still takes what is written in `surviving_output`."""
    return _failure(sys.stdout) is None


class _Raw(io.FileIO):
    """A file descriptor that takes everything, also after it has failed.

    Attributes:
        error: the first failure.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write some bytes; returns how many, or all of them if the descriptor has failed."""
        try:
            while self.error is None:
                done = super().write(data)
                if done is not None:
                    return done
                select.select([], [self], [])  # another program has made it non-blocking
        except OSError as error:
            self.error = error
        return len(memoryview(data).cast("B"))


def _surviving(stream: Any) -> Any:
    if type(stream) is not io.TextIOWrapper or _raw(stream) is not None:
        return stream
    try:
        stream.flush()
        raw = _Raw(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # no file, or closed
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _raw(stream: Any) -> _Raw | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Raw) else None


def _failure(stream: Any) -> OSError | None:
    raw = _raw(stream)
    return None if raw is None else raw.error
