"""Replaces the names of a family's members by options of `conf/model/`. Torch-free."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flfast.config.errors import ConfigError
from flfast.state.messages import first_line

_KEY, _COMMON, _ASSIGN = "model.of", "model.common", "model.assign"
_ALLOWED = (
    "allowed: options such as lenet, with overrides such as {cnn: {hidden: 64}}, or configs with "
    "a _target_"
)


def fill_members(config: DictConfig, option: Callable[[str], DictConfig]) -> None:
    """Give members of `model.of`, and `model.common`, whole configs; changes a run's config.

    `option` maps the name of an option of `conf/model/` to its config.

    Raises:
        ConfigError: if a member is neither an option nor a config with a `_target_`.
    """
    common = OmegaConf.select(config, _COMMON)
    if common is not None and not (OmegaConf.is_dict(common) and "_target_" in common):
        OmegaConf.update(config, _COMMON, _member(common, option, _COMMON)[1], merge=False)
    listed = OmegaConf.select(config, _KEY)
    if not OmegaConf.is_list(listed):
        return
    members: dict[str, Any] = {}
    for given in listed:
        name, node = _member(given, option, _KEY)
        free = (f"{name}-{number}" for number in count(2))
        members[name if name not in members else next(n for n in free if n not in members)] = node
    OmegaConf.update(config, _KEY, members, merge=False, force_add=True)
    assign = OmegaConf.select(config, _ASSIGN)
    if isinstance(assign, str) and Path(assign).is_file():  # a saved config has the names
        OmegaConf.update(config, _ASSIGN, Path(assign).read_text(encoding="utf-8").split())


def _member(given: Any, option: Callable[[str], DictConfig], key: str) -> tuple[str, Any]:
    """The name and the config of a member."""
    if isinstance(given, str):
        try:
            return given, option(given)
        except HydraException:
            raise ConfigError(f"{key}: {given} is no option of model=; {_ALLOWED}") from None
    if OmegaConf.is_dict(given) and "_target_" in given:
        return str(given["_target_"]).rpartition(".")[2], given
    if OmegaConf.is_dict(given) and len(given) == 1:
        ((name, settings),) = given.items()
        if OmegaConf.is_dict(settings):
            name, node = _member(str(name), option, key)
            unknown = sorted({*settings} - {*node})
            if unknown:
                raise ConfigError(
                    f"{key}: {name} has no {unknown[0]}; allowed: {', '.join(map(str, node))}"
                )
            try:
                return str(settings.get("name", name)), OmegaConf.merge(node, settings)
            except OmegaConfBaseException as error:
                raise ConfigError(f"{key}: {name}: {first_line(error)}") from None
    raise ConfigError(f"{key}: {given}; {_ALLOWED}")
