"""Hidden files, and those that operating systems put among a user's: no examples, nor classes."""

import logging
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_OF_SYSTEMS = {"__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information"}


def is_hidden(name: str) -> bool:
    """Whether this is the name of a hidden file or folder, or of one of an operating system."""
    return name.startswith(".") or name in _OF_SYSTEMS


def visible(folder: str | Path, names: Collection[str], hidden: list[Path]) -> list[str]:
    """Those of the names in a folder that are not hidden; paths of the others go to `hidden`."""
    hidden += [Path(folder, name) for name in names if is_hidden(name)]
    return [name for name in names if not is_hidden(name)]


def say_left_out(hidden: Iterable[Path], endings: Iterable[str]) -> None:
    """Warn of hidden files that end like images, and of hidden folders that hold such files."""
    wanted = tuple(endings)

    def names(path: Path) -> Iterator[str]:
        yield path.name
        yield from (name for _, _, files in os.walk(path) for name in files)

    found = [path for path in hidden if any(n.lower().endswith(wanted) for n in names(path))]
    if found:
        log.warning("%d hidden places with images are left out, such as %s", len(found), found[0])
