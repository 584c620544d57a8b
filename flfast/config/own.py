"""Objects that a Python program gives in place of what the config names. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from flfast.config.errors import ConfigError

OWN = "_own_"
"""Key of a config's node that stands for such an object; its value is a fingerprint."""

GROUPS = ("data", "model", "algorithm")
"""Groups of the config that an object can replace."""


@dataclass(frozen=True)
class Own:
    """Objects in place of `data`, `model` and `algorithm`; None where the config names one.

    Attributes:
        data: an `Examples`, or a function that returns one.
        model: a module, which is copied, or a function that makes one.
        algorithm: an `Algorithm`, or a function that makes one.
        nodes: of the config, by group: `_target_` and a fingerprint under `_own_`.
    """

    data: Any = None
    model: Any = None
    algorithm: Any = None
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        """The objects, by group."""
        return {group: getattr(self, group) for group in self.nodes}

    def put_into(self, config: DictConfig) -> None:
        """Replace the config's nodes; changes the config."""
        for group, node in self.nodes.items():
            config[group] = OmegaConf.create(dict(node))

    def take(self, config: DictConfig, group: str) -> Any:
        """The object of a group; None if the config names it.

        Raises:
            ConfigError: if the config is of a run that had an object, and there is none now.
        """
        found = getattr(self, group)
        if found is None and OWN in config[group]:
            raise ConfigError(
                f"{group}={config[group]['_target_']} is an object of a Python program, not an "
                f"option, so commands cannot read it; allowed: flfast.run with the same words, "
                f"resume=auto, folder= and {group}=, which returns the run and its model"
            )
        return found


NOTHING = Own()
"""No object: the config names everything."""
