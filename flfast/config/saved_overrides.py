"""Overrides of the config of a finished run. Torch-free."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from flfast.config.command_line import check_overrides
from flfast.config.composition import compose
from flfast.config.errors import ConfigError
from flfast.state.config_keys import keys_with
from flfast.state.messages import did_you_mean, first_line

_ABSENT = object()


def check_known(overrides: Iterable[str], config: DictConfig, known: Sequence[str]) -> None:
    """Refuse overrides of keys that do not exist, or change nothing.

    Args:
        overrides: of the command line.
        config: of the run.
        known: options of the command, for suggestions.

    Raises:
        ConfigError: one line per problem.
    """
    problems = []
    for word in overrides:
        key = word.partition("=")[0]
        first = key.lstrip("+").partition(".")[0]
        if first in keys_with("saved"):
            continue
        allowed = [*known, *keys_with("saved")]
        if first in config:
            problems.append(
                f"{word}: {first} changes nothing in a saved model; allowed: {', '.join(allowed)}"
            )
        else:
            problems.append(f"unknown key {key}{did_you_mean(first, allowed)}")
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def overridden(config: DictConfig, overrides: Sequence[str], *, conf: str) -> DictConfig:
    """A copy of a composed config with overrides in Hydra's grammar.

    Args:
        config: stays as it is.
        overrides: `group=option`, `key=value`, and `+key=value` for a key that is not there.
        conf: folder with the groups' options.

    Raises:
        ConfigError: naming the override, and what is allowed.
    """
    check_overrides(overrides, conf=conf)
    changed = deepcopy(config)
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(first_line(error)) from None
    groups = [item for item in parsed if (Path(conf) / item.key_or_group).is_dir()]
    for item in groups:
        changed[item.key_or_group] = _option(item)
    for item in parsed:
        if item not in groups:
            _set(changed, item)
    return changed


def _option(item: Override) -> Any:
    """An option of a config group, as Hydra composes it."""
    try:
        composed = compose([item.input_line or ""])
    except HydraException as error:
        raise ConfigError(str(error)) from None
    return composed[item.key_or_group]


def _set(config: DictConfig, item: Override) -> None:
    key, word = item.key_or_group, item.input_line
    if item.is_delete() or item.is_sweep_override():
        raise ConfigError(f"{word}: allowed: key=value or +key=value")
    found = OmegaConf.select(config, key, default=_ABSENT, throw_on_missing=False)
    if found is _ABSENT and not (item.is_add() or item.is_force_add()):
        parent = OmegaConf.select(config, key.rpartition(".")[0]) if "." in key else config
        names = [str(name) for name in parent] if isinstance(parent, DictConfig) else list(config)
        names = [name for name in names if not name.startswith("_")]
        raise ConfigError(f"unknown key {key}{did_you_mean(key.rpartition('.')[2], names)}")
    OmegaConf.update(config, key, item.value(), force_add=True)
