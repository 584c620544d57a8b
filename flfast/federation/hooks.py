"""Calls the hooks of a run's callbacks, which may be Lightning's or other objects."""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from flfast.engines.reports import ClientReport
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.table_rows import Columns
from flfast.state.plan import RoundPlan

log = logging.getLogger(__name__)


class FederatedRun(Protocol):
    """What hooks get of a run.

    Attributes:
        rounds: rounds of the run, unless it ends early.
        seed: the run's seed.
        title: one line for figures and tables.
        run_dir: the run folder.
        history: rows of `metrics.csv` so far; row r describes round r.
        server: server state, `{"params": {...}, "buffers": {...}}` and what the algorithm adds.
    """

    rounds: int
    seed: int
    title: str
    run_dir: Path
    history: list[Columns]
    server: dict[str, Any]

    def weights(self) -> dict[str, Tensor]:
        """State dict of the server's model, on the CPU."""

    def personal_weights(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """(client, state dict of its own model) for clients whose states are on this rank."""


class Hooks(Protocol):
    """What callbacks may have beside Lightning's hooks, in the order of calls; on all ranks."""

    def on_run_start(self, federation: FederatedRun) -> None:
        """Before row 0, or before the first round of a resume."""

    def on_round_start(self, federation: FederatedRun, plan: RoundPlan, cohort: Cohort) -> None:
        """Before the clients of a round train."""

    def on_client_end(self, federation: FederatedRun, report: ClientReport) -> None:
        """When this rank has trained a client."""

    def on_round_trained(self, federation: FederatedRun, row: Columns) -> None:
        """After the server step, before evaluation. What is added to the row is a column."""

    def on_round_end(
        self, federation: FederatedRun, row: Columns, clients: dict[int, Columns]
    ) -> None:
        """After evaluation and loggers. `clients` are rows of `clients.csv`."""

    def on_run_end(self, federation: FederatedRun) -> None:
        """After the last round, also of a run that failed or was stopped."""

    def on_run_complete(self, federation: FederatedRun) -> None:
        """After that, if all rounds are done."""

    def close(self) -> None:
        """At last, whatever happened."""


HOOKS = (*(name for name in vars(Hooks) if name.startswith("on_")), "on_turn")
"""Names of the hooks; `on_turn` is for callbacks of flfast itself."""


def hooks(callbacks: Sequence[object], hook: str) -> list[Callable[..., None]]:
    """A hook of all callbacks that have it."""
    found = (getattr(callback, hook, None) for callback in callbacks)
    return [method for method in found if method is not None]


def end_run(callbacks: Sequence[object], federation: object, status: str) -> None:
    """Call `on_run_end` of all callbacks, also after one that cannot write its file.

    Raises:
        OSError: of the first one. After a failed run it is only logged.
    """
    errors: list[OSError] = []
    # Files first: a screen may make the run wait, as a pipe does that nobody reads.
    for callback in sorted(callbacks, key=lambda callback: hasattr(callback, "prints_only")):
        method = getattr(callback, "on_run_end", None)
        try:
            if method is not None:
                method(federation)
        except OSError as error:
            errors.append(error)
    logged = errors[1:] if status == "success" else errors
    for problem in logged:
        log.warning("%s", problem)
    if len(logged) < len(errors):
        raise errors[0]
