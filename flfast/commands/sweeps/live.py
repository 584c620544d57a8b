"""The table of a packed sweep on a terminal, while it runs. Torch-free."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flfast.config.job import typed_overrides
from flfast.output.callbacks.screen import cell, empty_table
from flfast.output.results.history import last_value, validation_column
from flfast.output.results.run_tables import read_history


class JobTable:
    """Context in which a terminal shows a row per job. Without a terminal it does nothing.

    It has no thread: the process of the sweep forks, and a lock of a thread would not survive.
    """

    def __init__(self, jobs: Sequence[tuple[int, Path, DictConfig]]) -> None:
        self._jobs = jobs
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

    def __enter__(self) -> "JobTable":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Context in which other lines can be written."""
        if self._live is not None:
            self._live.stop()
        yield
        if self._live is not None:
            self._live.start()

    def update(self, running: Collection[int], results: Mapping[int, JobReturn]) -> None:
        """Show which jobs run, wait, or have ended."""
        if self._live is not None:
            self._live.update(job_table(self._jobs, running, results), refresh=True)


def job_table(
    jobs: Sequence[tuple[int, Path, DictConfig]],
    running: Collection[int],
    results: Mapping[int, JobReturn],
) -> Table:
    """A row per job: the overrides that not all have, state, rounds and validation."""
    shared = set.intersection(*(set(typed_overrides(config)) for *_, config in jobs))
    table = empty_table(["job", "overrides", "state"], ["round", "validation"])
    for num, folder, config in jobs:
        state = "runs" if num in running else "waits"
        if num in results:
            state = "done" if results[num].status == JobStatus.COMPLETED else "failed"
        words = " ".join(word for word in typed_overrides(config) if word not in shared)
        rounds, value = ("", "") if state == "waits" else _reached(folder, config)
        style = "bold red" if state == "failed" else ""
        table.add_row(f"{num}", Text(words), Text(state, style=style), rounds, value)
    return table


def _reached(folder: Path, config: DictConfig) -> tuple[str, str]:
    try:
        history = read_history(folder / "metrics.csv")
    except (OSError, ValueError):  # not there yet, or a row is being written
        return "", ""
    if not history:
        return "", ""
    column = validation_column(history)
    value = last_value(history, column)
    return f"{history[-1]['round']} of {config.rounds}", cell(column, value)
