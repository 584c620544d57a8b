"""The table of a packed sweep on a terminal, while it runs. Torch-free."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.live import Live

from flfast.commands.sweeps.job_folders import JobConfig
from flfast.config.job import typed_overrides
from flfast.output.watch.folder import Progress, read_progress
from flfast.output.watch.view import sweep_table


class JobTable:
    """Context in which a terminal shows a row per job. Without a terminal it does nothing.

    It has no thread: the process of the sweep forks, and a lock of a thread would not survive.
    """

    def __init__(self, jobs: Sequence[JobConfig]) -> None:
        self._jobs, self._seen = jobs, dict(enumerate(map(_waiting, jobs)))
        console = Console()
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Context in which the table is on the screen."""
        with self._live or nullcontext():
            yield

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Context in which other lines can be written."""
        if self._live is not None:
            self._live.stop()
        yield
        if self._live is not None:
            self._live.start()

    def update(self, begun: Collection[int]) -> None:
        """Show the jobs; `begun` are the numbers of those that run, or have ended."""
        if self._live is not None:
            self._live.update(sweep_table(self.look(begun)), refresh=True)

    def look(self, begun: Collection[int]) -> list[Progress]:
        """How far the jobs are; the folder of one that has ended is not read again."""
        for place, job in enumerate(self._jobs):
            if job.num in begun and self._seen[place].outcome in ("empty", "running"):
                self._seen[place] = _begun(job)
        return list(self._seen.values())


def _waiting(job: JobConfig) -> Progress:
    return Progress(job.folder, typed_overrides(job.config), job.config.rounds, [], "empty", [])


def _begun(job: JobConfig) -> Progress:
    try:
        return read_progress(job.folder)
    except (OSError, ValueError):  # not there yet, or a row is being written
        return _waiting(job)._replace(outcome="running")
