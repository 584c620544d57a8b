"""Commands in forked processes; the imports of a new interpreter would take ten seconds."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

_FORK = multiprocessing.get_context("fork")


class Command:
    """A command that runs as `python -m` would.

    Args:
        main: function of the module; reads `sys.argv`.
        arguments: of the command line.
        folder: working directory; `stdout` and `stderr` are files in it.
        env: environment variables in addition to those of this process.
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
        """Wait for at most `timeout` seconds; returns the exit code and the text of `stderr`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            os.kill(self._process.pid, signal.SIGUSR2)
            time.sleep(2)
        text = (self.folder / "stderr").read_text()
        assert self._process.exitcode is not None, f"{self.folder} still runs: {text}"
        return self._process.exitcode, text

    def kill(self) -> None:
        """Kill the process."""
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
        # The inherited streams are pytest's, which captures them for the test's report.
        stream = Path(name).open("w", buffering=1)  # noqa: SIM115 - open until the process ends
        os.dup2(stream.fileno(), number)
        setattr(sys, name, stream)
    faulthandler.register(signal.SIGUSR2)  # writes where a process is that does not end
    signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # undo the handler of a TorchElastic agent in the parent
    main()
