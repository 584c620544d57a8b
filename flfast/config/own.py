"""Objects that a Python program gives in place of what the config names. Torch-free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from flfast.config.errors import ConfigError

OWN = "_own_"
"""Key of a config's node that stands for such an object; its value is a fingerprint, or a name."""

GROUPS = ("data", "model", "algorithm")
"""Groups of the config that an object can replace."""


@dataclass(frozen=True)
class Own:
    """Objects in place of `data`, `model` and `algorithm`; None where the config names one.

    Callbacks are in addition to those that the config names.

    Attributes:
        data: an `Examples`, or a function that returns one.
        model: a module, which is copied, or a function that makes one.
        algorithm: an `Algorithm`, or a function that makes one.
        callbacks: by name.
        client: number of the client whose examples alone are kept, and the number of clients, in
            a process of a deployment; None in a simulation.
        nodes: parts of the config, by key: `_target_`, a fingerprint under `_own_`; of data also
            `target`, `client` and `labels`, and whether there is `test_data`, if they were given.
        trains_itself: whether the model is a LightningModule with a step of its own.
    """

    data: Any = None
    model: Any = None
    algorithm: Any = None
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    client: tuple[int, int] | None = None
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trains_itself: bool = False

    def given(self) -> dict[str, Any]:
        """The objects, by key of the config."""
        objects = {group: getattr(self, group) for group in GROUPS}
        objects |= {f"callbacks.{name}": value for name, value in self.callbacks.items()}
        return {key: objects[key] for key in self.nodes}

    def put_into(self, config: DictConfig) -> None:
        """Replace the config's nodes; changes the config."""
        for key, node in self.nodes.items():
            OmegaConf.update(config, key, dict(node), merge=False, force_add=True)

    def require(self, config: DictConfig, folder: Path, groups: Sequence[str] = GROUPS) -> None:
        """Refuse a saved run whose objects are not all here, of these groups.

        Raises:
            ConfigError: with the lines of Python that work.
        """
        had = [group for group in groups if OWN in (config.get(group) or {})]
        missing = [group for group in had if getattr(self, group) is None]
        if not missing:
            return
        node = config[missing[0]]
        words = ", ".join(word for group in had for word in _words(group, config[group]))
        raise ConfigError(
            f"{missing[0]}={node['_target_']} is an object of a Python program, which commands "
            f"cannot read; in a program that has it, these lines work:\n"
            f"run = flfast.Run({str(folder)!r}, {words})\n"
            f"run.evaluate()"
        )


def _words(group: str, node: Mapping[str, Any]) -> list[str]:
    """Arguments of `flfast.Run` for an object: its name in capitals; texts as Python has them."""
    found = [f"{group}={group.upper()}"]
    if group == "data":
        found += ["test_data=TEST_DATA"] * bool(node.get("test_data"))
        for key in ("target", "client", "labels"):
            if (value := node.get(key)) is not None:
                found.append(f"{key}={value if value == key.upper() else repr(str(value))}")
    return found


def is_data_module(node: Mapping[str, Any]) -> bool:
    """Whether a node of data gives a user's DataModule, and no function that returns examples."""
    return not (node.get("_partial_") or str(node.get("_target_")).startswith("flfast."))


def passed(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node of data without what a DataModule does not get: where clients and labels are."""
    own = {"owner", "labels"} if is_data_module(node) else set()
    return {key: value for key, value in node.items() if key not in own}


NOTHING = Own()
"""No object: the config names everything."""
