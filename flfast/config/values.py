"""Values of a config by dotted key, and how messages show them. Torch-free."""

import re
from collections.abc import Mapping
from typing import Any

from flfast.config.own import OWN

Config = dict[str, Any]


def value_of(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None if there is none."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def setting(config: Mapping[str, Any], key: str) -> str:
    """A dotted key and its value, as they are typed on the command line."""
    return f"{key}={shown(value_of(config, key))}"


def shown(value: Any) -> str:
    """The value as it is typed on the command line."""
    return "null" if value is None else str(value)


def choice(node: Mapping[str, Any]) -> str:
    """The name of what a config group chose, as it is typed; of an object, its class's name."""
    target = str(node["_target_"])
    name = target.rpartition(".")[2]
    if target.startswith("flfast.") and OWN not in node:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return "async" if name == "asynchronous" else name  # a keyword of Python
