"""Which folder a path means, and how it is written in a setting. Torch-free."""

import os
import re
import shlex
from pathlib import Path

_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)
"""Paths that Hydra and shells read as they are."""


def real_folder(path: str | Path) -> Path:
    """The identity of a folder: one absolute path for all spellings, also before it exists.

    A leading `~` is the user's home, and there are no links, `.`, `..` or `//` in it. `link/..` is
    what the system takes it for: the folder above the one that the link leads to.
    """
    return Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111 - `~nobody` is a name


def literal(path: str | Path) -> str:
    """The path as a value of OmegaConf, in which `${` begins no interpolation."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", str(path))


def folder_setting(key: str, folder: str | Path) -> str:
    """`key=folder` as Hydra reads it."""
    return text_setting(key, literal(folder))


def text_setting(key: str, text: str) -> str:
    """`key=text`, with quotes of Hydra's grammar where it needs them; `${...}` stays."""
    if _PLAIN.fullmatch(text):
        return f"{key}={text}"
    # Backslashes count only before a quote or the end.
    text = re.sub(r"(\\+)\Z", r"\1\1", re.sub(r"(\\*)'", r"\1\1\\'", text))
    return f"{key}='{text}'"


def shell_setting(key: str, folder: str | Path) -> str:
    """The same for a line that users paste into a shell."""
    return shlex.quote(folder_setting(key, folder))
