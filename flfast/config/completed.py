"""Adds the keys that options have got since a run was saved, with their defaults. Torch-free.

`.hydra/config.yaml` of an earlier version is read by later ones, which may have more keys.
"""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from flfast.config.composition import CONF, options_of
from flfast.config.trust import short
from flfast.state.plain_yaml import PARSER

log = logging.getLogger(__name__)


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a saved run with the keys that it lacks, at its top and in its groups.

    A key of a group is added if all options that call the same function have one value for it.
    What is an interpolation, or a group, is not added.
    """
    whole = _added("", _read(str(Path(CONF, "config.yaml"))), config)
    for group, node in whole.items():
        if isinstance(node, dict) and "_target_" in node:
            whole[group] = _added(f"{group}.", _defaults(group, str(node["_target_"])), node)
    return whole


def _added(prefix: str, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    added = {
        key: value
        for key, value in defaults.items()
        if key not in given and not isinstance(value, dict) and "${" not in str(value)
    }
    for key, value in added.items():
        log.info("%s%s=%s: the run had no such key", prefix, key, short(str(value)))
    return {**given, **added}


@cache
def _defaults(group: str, target: str) -> dict[str, Any]:
    """Values by key on which all options of a group agree that call a function."""
    nodes = [_read(str(path)) for path in options_of(group).values()]
    nodes = [node for node in nodes if node.get("_target_") == target]
    values = {key: [node.get(key) for node in nodes] for node in nodes for key in node}
    return {key: every[0] for key, every in values.items() if every.count(every[0]) == len(every)}


@cache
def _read(path: str) -> dict[str, Any]:
    node = yaml.load(Path(path).read_text(encoding="utf-8"), PARSER)
    return {key: value for key, value in (node or {}).items() if key != "defaults"}
