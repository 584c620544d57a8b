"""Errors of a run, shown to the user without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf.errors import OmegaConfBaseException

from flfast.state.messages import first_line


class ConfigError(ValueError):
    """A setting that cannot be run. The message names the key, its value and what is allowed."""


class OneRankError(ConfigError):
    """A `ConfigError` on one rank only: the other ranks do not know of it and must be stopped."""


class FolderBusyError(ConfigError):
    """Another process writes into the folder of a run; once it has ended, the run is possible."""


class RunStopped(KeyboardInterrupt):
    """A run from Python ended on request (Ctrl-C, SIGTERM or SIGUSR1) and can be resumed.

    The request was the first one. A second one raises `KeyboardInterrupt` at once.
    """


@contextmanager
def refused() -> Iterator[None]:
    """Context in which an OSError or a ValueError becomes a `ConfigError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from None


@contextmanager
def resolved() -> Iterator[None]:
    """Context in which an error of an interpolation becomes a `ConfigError` in one line."""
    try:
        yield
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {first_line(error)}") from None
