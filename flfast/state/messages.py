"""Messages of errors: shortened to a line, and with the file that they are about."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the error's type if the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def one_line(error: BaseException) -> str:
    """The whole message of an error in one line; with its type, unless a value was wrong.

    >>> one_line(ValueError("rounds=0:  must be >= 1")), one_line(ZeroDivisionError("by zero"))
    ('rounds=0: must be >= 1', 'ZeroDivisionError: by zero')
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {text}"


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """The end of a message about an unknown name: the nearest known one, or else all of them.

    The prefix, such as `model.`, is shown in front of each.

    >>> did_you_mean("fedprx", ["fedavg", "fedprox"]), did_you_mean("x", ["fedavg", "fedprox"])
    ('; did you mean fedprox?', '; allowed: fedavg, fedprox')
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    shown = ", ".join(f"{prefix}{one}" for one in close or names)
    return f"; did you mean {shown}?" if close else f"; allowed: {shown}"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an `OSError` that names none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for tabs and newlines, also those that change the direction of text."""


def printable(text: str) -> str:
    r"""The text with control characters as Python writes them, so that no terminal obeys them.

    >>> printable("loss \x1b[2J 0.5")
    'loss \\x1b[2J 0.5'
    """
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
