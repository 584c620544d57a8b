"""Calls the hooks of a run's callbacks."""

import logging
from collections.abc import Sequence

log = logging.getLogger(__name__)


class Hooks:
    """The hooks of rounds: Lightning's callbacks, and other objects, may have them.

    Args:
        callbacks: the run's callbacks.
    """

    def __init__(self, callbacks: Sequence[object]) -> None:
        self._callbacks = callbacks

    def call(self, hook: str, *args: object) -> None:
        """Call a hook of all callbacks that have it."""
        for callback in self._callbacks:
            _call(callback, hook, *args)

    def end(self, federation: object, status: str) -> None:
        """Call `on_run_end` of all callbacks, also after one that cannot write its file.

        Args:
            federation: the run.
            status: `success` or `failed`.

        Raises:
            OSError: of the first one. After a failed run it is only logged.
        """
        # Files first: a screen may make the run wait, as a pipe does that nobody reads.
        files_first = sorted(
            self._callbacks, key=lambda callback: hasattr(callback, "prints_only")
        )
        ends = (_end(callback, federation) for callback in files_first)
        errors = [error for error in ends if error is not None]
        logged = errors[1:] if status == "success" else errors
        for error in logged:
            log.warning("%s", error)
        if len(logged) < len(errors):
            raise errors[0]


def _call(callback: object, hook: str, *args: object) -> None:
    method = getattr(callback, hook, None)
    if method is not None:
        method(*args)


def _end(callback: object, federation: object) -> OSError | None:
    """Call `on_run_end`; returns the error if it cannot write its file."""
    try:
        _call(callback, "on_run_end", federation)
    except OSError as error:
        return error
    return None
