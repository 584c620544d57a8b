"""Which folder a path means. Torch-free."""

import os
import re
from pathlib import Path


def real_folder(path: str | Path) -> Path:
    """The identity of a folder: one absolute path for all spellings, also before it exists.

    A leading `~` is the user's home, and there are no links, `.`, `..` or `//` in it. `link/..` is
    what the system takes it for: the folder above the one that the link leads to.
    """
    place = os.path.expanduser(path)  # noqa: PTH111 - `~nobody` is a name
    try:
        return Path(os.path.realpath(place))
    except ValueError:  # a NUL, which no folder's name has
        return Path(place).absolute()


def literal(path: str | Path) -> str:
    """The path as a value of OmegaConf, in which `${` begins no interpolation."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", str(path))
