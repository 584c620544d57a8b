"""Calls the hooks of a run's callbacks, which may be Lightning's or other objects."""

import logging
from collections.abc import Sequence

log = logging.getLogger(__name__)


def call_hooks(callbacks: Sequence[object], hook: str, *args: object) -> None:
    """Call a hook of all callbacks that have it."""
    for callback in callbacks:
        method = getattr(callback, hook, None)
        if method is not None:
            method(*args)


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
