"""Commands in processes of their own, forked: a new interpreter imports for ten seconds."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_FORK = multiprocessing.get_context("fork")


class Command:
    """A command, started as `python -m` would from a folder.

    Args:
        main: the module's function; reads `sys.argv`.
        arguments: of the command line.
        folder: where it runs, with `stdout` and `stderr` in files there.
        env: variables beside those of this process.
    """

    def __init__(
        self,
        main: Callable[[], object],
        arguments: tuple[str, ...],
        folder: Path,
        env: dict[str, str],
    ) -> None:
        self.folder = folder
        self._process = _FORK.Process(target=_run, args=(main, arguments, folder, env))
        self._process.start()
        self.pid = self._process.pid

    def end(self, timeout: float = 240) -> tuple[int, str]:
        """Wait for it, at most `timeout` seconds; its exit code and what it said to `stderr`."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"{self.folder} still runs"
        return self._process.exitcode, (self.folder / "stderr").read_text()

    def kill(self) -> None:
        """End it whatever it does."""
        self._process.kill()
        self._process.join()


def _run(
    main: Callable[[], object], arguments: tuple[str, ...], folder: Path, env: dict[str, str]
) -> None:
    os.chdir(folder)
    os.environ |= env
    sys.argv = ["command", *arguments]
    sys.path.insert(0, "")  # noqa: TID251 - as `python -m` does
    for name, number in (("stdout", 1), ("stderr", 2)):
        # Not pytest's, which wants to show them as the test's own.
        stream = Path(name).open("w", buffering=1)  # noqa: SIM115 - open to the end
        os.dup2(stream.fileno(), number)
        setattr(sys, name, stream)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not that of an agent that ran in the parent
    main()
