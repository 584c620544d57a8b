"""Overrides that follow from typed ones: defaults that these exclude give way. Torch-free."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from flfast.config.composition import options_of

_EITHER = (("local_epochs", "local_steps"), ("privacy.epsilon", "privacy.noise_multiplier"))
"""Keys of which exactly one is set."""


def implied(words: Sequence[str]) -> list[str]:
    """Overrides that follow from others.

    Setting `local_steps` unsets `local_epochs`, and back; likewise the others of `_EITHER`. Who
    sets both gets the message about them. A key that is set to null implies nothing. An option
    that replaces that of an experiment is not given the experiment's keys that it does not have.
    Who names the column of clients gets these clients, unless a partition is chosen. A model that
    is a LightningModule with a step of its own brings its task and, unless one is chosen, its
    optimizer. Paths of a project in lightning-hydra-template's shape are there for its options.

    >>> implied(["rounds=3", "local_steps=5"]), implied(["local_steps=5", "local_epochs=null"])
    (['local_epochs=null'], [])
    >>> implied(["experiment=diloco", "partition=natural"])
    ['~partition.num_clients']
    >>> implied(["experiment=diloco", "partition=natural", "~partition.num_clients"])
    []
    >>> implied(["data=table", "data.owner=site"]), implied(["data.owner=site", "partition=iid"])
    (['partition=natural'], [])
    """
    typed = dict(word.lstrip("+").partition("=")[::2] for word in words if "=" in word)
    recipes = list(_parts("experiment", typed.get("experiment", "")))
    chosen: dict[str, str] = {}
    for recipe in recipes:
        entries = (entry for entry in recipe.get("defaults", ()) if isinstance(entry, dict))
        chosen |= {k.rpartition("/")[2]: v for entry in entries for k, v in entry.items()}
    chosen_now = {**chosen, **typed}
    named = typed.get("data.owner", "null") not in {"null", "auto"}
    clients = ["partition=natural"] if named and "partition" not in chosen_now else []
    left_over = [word for word in _left_over(typed, chosen, recipes) if word not in words]
    has_paths = any((folder / "paths/default.yaml").is_file() for folder in user_folders(words))
    paths = ["+paths=default"] if has_paths and "paths" not in typed else []
    return [*paths, *_of_module(words, typed), *clients, *_excluded(typed, chosen_now), *left_over]


def _of_module(words: Sequence[str], typed: Mapping[str, str]) -> list[str]:
    option, target = typed.get("model", ""), typed.get("model._target_", "")
    for folder in [] if target else user_folders(words):
        path = folder / "model" / f"{option}.yaml"
        node: Any = OmegaConf.load(path) if path.is_file() else {}
        target = node.get("_target_", target)
    if option != "lightning" and not trains_itself(target):
        return []
    return [f"{key}=module" for key in ("task", "optimizer") if key not in typed]


def user_folders(words: Sequence[str]) -> Iterator[Path]:
    """Folders with a user's own config groups, as the words name them."""
    for place, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag in {"--config-dir", "-cd"}:
            yield Path(value or next(iter(words[place + 1 :]), ""))
        elif flag == "hydra.searchpath":
            yield from (Path(part) for part in re.findall(r"file://([^,\]'\"]+)", value))


def trains_itself(target: str) -> bool:
    """Whether a dotted path names a LightningModule with a step of its own; imports its module."""
    if not target or target.startswith(("flfast.", "torch.", "???")):
        return False
    try:
        found = get_object(target)
    except Exception:  # noqa: BLE001 - the check of the config says what is wrong
        return False
    if "lightning" not in sys.modules:
        return False
    from flfast.lit.user_module import steps_itself  # imports torch

    return isinstance(found, type) and steps_itself(found)


def _excluded(typed: Mapping[str, str], chosen: Mapping[str, str]) -> Iterator[str]:
    for pair in _EITHER:
        named = [key for key in pair if key in typed]
        if len(named) != 1 or typed[named[0]] == "null":
            continue
        for key in {*pair} - {*named}:
            group, _, name = key.rpartition(".")
            # An option of a user's folder need not have both.
            if not group or name in _keys(group, chosen.get(group, "")):
                yield f"{key}=null"


def _left_over(
    typed: Mapping[str, str], chosen: Mapping[str, str], recipes: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for group in typed.keys() & {group for recipe in recipes for group in recipe}:
        known = _keys(group, typed[group])
        if not known or typed[group] == chosen.get(group):
            continue
        given = {key for recipe in recipes for key in recipe.get(group, ())}
        for key in sorted(given - known):
            if f"{group}.{key}" not in typed:
                yield f"~{group}.{key}"


def _keys(group: str, option: str) -> set[str]:
    """Keys of an option in `conf/`; none if it is not there."""
    return {key for part in _parts(group, option) for key in part}


def _parts(group: str, option: str) -> Iterator[dict[str, Any]]:
    """What an option's file sets, after those of the same group that it builds on."""
    path = options_of(group).get(option)
    if path is None:
        return
    node: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    for entry in node.get("defaults", ()):
        if isinstance(entry, str):  # `_self_` is no file
            yield from _parts(group, entry)
    yield node
