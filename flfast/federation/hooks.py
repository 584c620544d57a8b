"""Calls the hooks of a run's callbacks and its loggers, which may be Lightning's or others."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lightning.pytorch.loggers import Logger

log = logging.getLogger(__name__)

HOOKS = (
    *("on_run_start", "on_round_start", "on_client_end", "on_round_trained", "on_round_end"),
    *("on_run_end", "on_run_complete", "close"),
)
"""Hooks of rounds, in the order of their calls; docs/callbacks.md has their signatures."""


def hooks(callbacks: Sequence[object], hook: str, federation: object) -> list[Callable[..., None]]:
    """A hook of all callbacks that have it, with the federation as the first argument."""
    found = (getattr(callback, hook, None) for callback in callbacks)
    return [partial(method, federation) for method in found if method is not None]


def log_row(loggers: Sequence[Logger], row: Mapping[str, Any]) -> None:
    """Give loggers a round's row. Lightning's accept numbers only; ours also write text."""
    numbers = {name: value for name, value in row.items() if not isinstance(value, str)}
    for logger in loggers:
        text = getattr(logger, "accepts_text", False)
        logger.log_metrics(dict(row) if text else numbers, step=row["round"])


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
