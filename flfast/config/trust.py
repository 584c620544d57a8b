"""Which targets of a saved run's config may be built: flfast's own, and those that users name.

A `_target_` is any function of any package, and the folder of a run may be a stranger's.
Torch-free.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import DictConfig, OmegaConf

from flfast.config.composition import CONF
from flfast.config.own import GROUPS, OWN
from flfast.config.values import shown
from flfast.state.messages import printable
from flfast.state.plain_yaml import PARSER

_HANDED_ON = ("options", "pretrained_path", "download")
"""Arguments of models of other libraries that these may answer with code from a file or a hub."""

_RESOLVER = re.compile(r"\$\{([A-Za-z_][\w.]*):")
_LONGEST_SHOWN = 120


class BuiltNode(NamedTuple):
    """A node of a config that is built.

    Attributes:
        key: key of the node, such as `optimizer`.
        name: dotted path of the function or class.
        node: with `_target_` and the arguments.
    """

    key: str
    name: str
    node: Mapping[str, Any]


def targets(node: Any, key: str = "") -> Iterator[BuiltNode]:
    """All targets in a part of a config, but for objects of a program, which are not built.

    The part has no interpolations; `key` is its place, empty for the whole config.
    """
    if isinstance(node, Mapping):
        if key in GROUPS and OWN in node:
            return
        if "_target_" in node:
            yield BuiltNode(key, str(node["_target_"]), node)
        items: Iterator[tuple[Any, Any]] = iter(node.items())
    else:
        items = enumerate(node) if isinstance(node, list) else iter(())
    for name, child in items:
        yield from targets(child, f"{key}.{name}" if key else str(name))


def short(value: Any) -> str:
    """The beginning of a stranger's value, for messages."""
    return printable(shown(value)[:_LONGEST_SHOWN])


@cache
def own_targets() -> Mapping[str, frozenset[str]]:
    """Targets that stand in flfast's own options, by config group."""
    found: dict[str, set[str]] = {}
    for path in Path(CONF).glob("*/*.yaml"):
        group = path.parent.name
        option = yaml.load(path.read_text(encoding="utf-8"), PARSER)  # one of the safe loaders
        names = {target.name for target in targets(option, group)}
        found.setdefault(group, set()).update(names - {"???"})
    return {group: frozenset(names) for group, names in found.items()}


def named_by(config: DictConfig) -> list[str]:
    """Targets and resolvers that a config of this program names, which it trusts."""
    raw = OmegaConf.to_container(config, resolve=False)
    return [
        *{target.name for target in targets(raw)},
        *_RESOLVER.findall(OmegaConf.to_yaml(config)),
    ]


def refusals(node: Any, allow: Sequence[str]) -> Iterator[str]:
    """A line for each target of a whole config that must not be built.

    `allow` has packages, modules or functions that the user trusts, by dotted path.
    """
    for target in targets(node):
        if any(f"{target.name}.".startswith(f"{name}.") for name in allow):
            continue
        key, name = printable(target.key), short(target.name)
        if target.name not in own_targets().get(target.key.partition(".")[0], ()):
            yield (
                f"{key}._target_={name}: is no option of flfast, and whatever it is would be run; "
                f"allowed: allow={name}, if you trust the folder"
            )
        elif given := [word for word in _HANDED_ON if key == "model" and target.node.get(word)]:
            yield (
                f"{key}.{given[0]}={short(target.node[given[0]])}: another library gets it, and "
                f"may run code of a file or a hub; allowed: allow={name}, if you trust the folder"
            )
