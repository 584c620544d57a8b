"""Checks the arguments of `flfast.run` and `flfast.compose`. Torch-free."""

import difflib
import os
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from flfast.config.errors import ConfigError
from flfast.config.own import GROUPS
from flfast.config.values import shown
from flfast.state.config_keys import flat


class Arguments(NamedTuple):
    """Arguments of `flfast.run` and `flfast.Run`: objects of a program, and what they are."""

    data: Any = None
    test_data: Any = None
    target: Any = None
    client: Any = None
    labels: Any = None
    model: Any = None
    algorithm: Any = None


def check_words(overrides: Iterable[object]) -> None:
    """Refuse an override that is no text, a flag, or of Hydra.

    Raises:
        ConfigError: naming it, and the text to write instead.
    """
    for word in overrides:
        if not isinstance(word, str):
            texts = _texts(word) if isinstance(word, Mapping) else "such as 'rounds=5'"
            kind = type(word).__name__
            raise ConfigError(f"{word!r} is of type {kind}; allowed: texts, {texts}")
        _check_text(word)


def _check_text(word: str) -> None:
    if "=" not in word and not word.startswith(("~", "-")):
        raise ConfigError(f"{word!r} is no setting; allowed: key=value, such as 'rounds=5'")
    if word.startswith("-"):
        raise ConfigError(
            f"{word}: flags belong to the command line; allowed: key=value without dashes; more "
            f"config groups are found with hydra.searchpath=[file://FOLDER]"
        )
    key, _, value = word.lstrip("+~").partition("=")
    if key in {"hydra.run.dir", "folder"}:
        raise ConfigError(f"{word}: write flfast.run(..., folder={value!r})")
    if key.startswith("hydra") and not word.startswith("hydra.searchpath="):
        raise ConfigError(
            f"{word}: belongs to the command line; allowed: hydra.searchpath=[file://FOLDER]"
        )


def check_settings(settings: Mapping[str, object], *, known: Iterable[str], caller: str) -> None:
    """Refuse keyword arguments that the function does not have.

    Raises:
        ConfigError: naming them, and the texts to write instead.
    """
    if not settings:
        return
    close = difflib.get_close_matches(next(iter(settings)), known, n=1, cutoff=0.8)
    instead = f"did you mean {close[0]}=?" if close else f"write {_texts(settings)}"
    names = ", ".join(f"{name}=" for name in settings)
    raise ConfigError(f"{names}: no argument of {caller}, and settings are texts; {instead}")


def check_objects(given: Arguments, folder: object) -> None:
    """Refuse names of options where objects belong, and a folder or a column that is no name.

    Raises:
        ConfigError: naming the argument, its value and what is allowed.
    """
    for name in (*GROUPS, "test_data"):
        if isinstance(value := getattr(given, name), str):
            instead = f'write "{name}={value}"' if name in GROUPS else "allowed: examples"
            raise ConfigError(f"{name}={value!r} is a text, not an object; {instead}")
    is_path = isinstance(folder, (str, os.PathLike)) and str(folder) and "\0" not in str(folder)
    if folder is not None and not is_path:
        raise ConfigError(f"folder={folder!r}: allowed: a path")
    target, client = given.target, given.client
    if not isinstance(target, Hashable):
        raise ConfigError(f"target={target!r}: allowed: the name of one column")
    if isinstance(client, Hashable) and target is not None and target == client:
        raise ConfigError(f"target and client are both {target!r}; allowed: two columns")


def _texts(settings: Mapping[Any, object]) -> str:
    """Settings as overrides: `"rounds=3", "optimizer.lr=0.1"`."""
    return ", ".join(f'"{key}={shown(value)}"' for key, value in flat(settings))
