"""Hidden files, and those that operating systems put among a user's: no examples, nor classes."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

_OF_SYSTEMS = {
    *("__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN"),
    *("System Volume Information", "lost+found"),
}


def is_hidden(name: str) -> bool:
    """Whether this is the name of a hidden file or folder, or of one of an operating system."""
    return name.startswith(".") or name in _OF_SYSTEMS


def say_left_out(places: Iterable[Path], endings: Iterable[str]) -> None:
    """Warn of hidden files with these endings, and of hidden folders that hold such files."""
    wanted = tuple(endings)

    def holds_any(place: Path) -> bool:
        below = (name for _, _, files in os.walk(place) for name in files)
        return any(name.lower().endswith(wanted) for name in (place.name, *below))

    found = [place for place in places if holds_any(place)]
    if found:
        log.warning(
            "%d hidden files or folders with images are left out, such as %s", len(found), found[0]
        )
