"""Fills in keys that flfast got after a config was saved, with their defaults of `conf/`.

Torch-free.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf

from flfast.config.composition import CONF, compose, without_hydra
from flfast.config.errors import ConfigError
from flfast.output.results.runs import read_choices
from flfast.state.messages import first_line

_NOT_OF_RUNS = {"experiment", "hparams_search"}


def with_added_keys(saved: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A copy of a saved config that has every key of today's config; interpolations stay.

    A key of a group gets the default of the option that the run in the folder chose, if the option
    is still there. Nodes that build something else than that option are left alone.

    Raises:
        ConfigError: if the options cannot be composed, or the file is no YAML of a run.
    """
    try:
        chosen = dict(_chosen(folder))
        defaults = _defaults(*(f"{group}={option}" for group, option in chosen.items()))
    except HydraException as error:
        raise ConfigError(f"{folder}: {first_line(error)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from None
    known = {
        key: value
        for key, value in defaults.items()
        if key not in saved or key in chosen or not Path(CONF, key).is_dir()
    }
    return _filled(saved, known)


@lru_cache(maxsize=8)
def _defaults(*options: str) -> Any:
    return OmegaConf.to_container(without_hydra(compose(options)), resolve=False)


def lacks_keys(saved: Any, now: Mapping[str, Any]) -> bool:
    """Whether a config lacks a key of another one, at any depth."""
    return isinstance(saved, dict) and any(
        key not in saved or (isinstance(value, dict) and lacks_keys(saved[key], value))
        for key, value in now.items()
    )


def _chosen(folder: Path) -> Iterator[tuple[str, str]]:
    """(group, option) for the options of `conf/` that the run in a folder chose."""
    path = folder / ".hydra" / "hydra.yaml"
    for group, option in read_choices(folder).items() if path.exists() else ():
        names = group not in _NOT_OF_RUNS and re.fullmatch(r"\w+/\w+", f"{group}/{option}")
        if names and Path(CONF, group, f"{option}.yaml").is_file():
            yield group, option


def _filled(saved: Mapping[str, Any], defaults: Any) -> dict[str, Any]:
    found = dict(saved)
    if found.get("_target_") != defaults.get("_target_"):
        return found
    for key, default in defaults.items():
        if key not in found:
            found[key] = deepcopy(default)
        elif isinstance(found[key], dict) and isinstance(default, dict):
            found[key] = _filled(found[key], default)
    return found
