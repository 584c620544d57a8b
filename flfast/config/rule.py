"""What a rule about a config is. Torch-free."""

import re
from collections.abc import Callable
from typing import Any

Config = dict[str, Any]
Rule = Callable[[Config], str | None]
"""The whole config -> a problem, or None."""


def shown(value: Any) -> str:
    """The value as it is typed on the command line."""
    return "null" if value is None else str(value)


def choice(node: Config) -> str:
    """The name of what a config group chose; of a class of ours, as it is typed."""
    target = str(node["_target_"])
    name = target.rpartition(".")[2]
    if target.startswith("flfast."):
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return "async" if name == "asynchronous" else name  # a keyword of Python
