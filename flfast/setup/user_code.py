"""Names the setting, the code and the line when something that the user configured fails."""

import inspect
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hydra.errors import InstantiationException

from flfast.config.errors import ConfigError
from flfast.state.messages import first_line

T = TypeVar("T")

_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


@contextmanager
def named(key: str, target: str) -> Iterator[None]:
    """Turn an exception of a configured function into a message that names the setting.

    Raises:
        ConfigError: with the user's own lines of the traceback below, if there are any.
            Exceptions of flfast itself, whose messages name a setting, stay as they are.
    """
    try:
        yield
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        cause = _cause(error)
        if isinstance(cause, ConfigError) or (isinstance(cause, ValueError) and _is_ours(cause)):
            raise
        raise ConfigError(f"{key}={target}: {described(cause)}") from error


def of_kind(made: object, kind: type[T], setting: str, *, allowed: str) -> T:
    """What a setting's function has made.

    Raises:
        ConfigError: if that is of another type.
    """
    if not isinstance(made, kind):
        raise ConfigError(f"{setting}: gives a {type(made).__name__}; allowed: {allowed}")
    return made


def described(error: BaseException) -> str:
    """Type and message of an exception, and the user's own lines of its traceback."""
    what = type(error).__name__
    text = f"{what}: {first_line(error)}" if str(error) else what
    return f"{text}{_own_lines(error)}"


def own_failure(error: BaseException) -> str | None:
    """A message about an exception in the user's own code; None if it is not theirs."""
    lines = _own_lines(error)
    if not lines:
        return None
    return f"{type(error).__name__} in your own code: {first_line(error)}{lines}"


def place(code: object) -> str:
    """File and line of a function or class, such as ` (net.py, line 12)`; empty if unknown."""
    try:
        _, start = inspect.getsourcelines(code)  # type: ignore[arg-type]
        return f" ({inspect.getsourcefile(code)}, line {start})"  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""


def _cause(error: BaseException) -> BaseException:
    """The exception that Hydra wrapped."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _own_lines(error: BaseException) -> str:
    """The user's part of a traceback, a newline in front; empty if the user has none in it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, frame in enumerate(frames) if _is_own(frame.filename)]
    if not own:
        return ""
    return "\n" + "".join(traceback.format_list(frames[own[0] : own[-1] + 1])).rstrip()


def _is_own(filename: str) -> bool:
    path = Path(filename)
    return path.is_file() and not any(map(path.is_relative_to, (_PACKAGE, *_LIBRARIES)))


def _is_ours(error: BaseException) -> bool:
    """Whether flfast itself raised an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(_PACKAGE)
