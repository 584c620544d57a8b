"""Calls the hooks of a run's callbacks, which may be Lightning's or other objects."""

import logging
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

HOOKS = (
    *("on_run_start", "on_round_start", "on_client_end", "on_round_trained", "on_round_end"),
    *("on_run_end", "on_run_complete", "close"),
)
"""Hooks of rounds, in the order of their calls; docs/callbacks.md has their signatures."""


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
