"""Words of the commands about saved runs, which `flfast.Run` takes, too. Torch-free."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from flfast.config.command_line import at_home, check_overrides
from flfast.config.composition import compose, options_of
from flfast.config.errors import ConfigError
from flfast.state.config_keys import keys_with
from flfast.state.messages import did_you_mean, first_line

_BOTH: dict[str, Sequence[str] | None]
_BOTH = dict.fromkeys(("run", "allow", "checkpoint", "model", "output"))

EVALUATE: Mapping[str, Sequence[str] | None] = {
    **_BOTH,
    "split": ("test", "val", "train", "global"),
    "personal": ("true", "false"),
    "predictions": ("csv", "parquet"),
}
"""Allowed values of the options of `flfast.evaluate`; None allows any."""

EXPORT: Mapping[str, Sequence[str] | None] = {**_BOTH, "format": ("torch", "onnx"), "client": None}
"""The same of `flfast.export`."""

PREDICT: Mapping[str, Sequence[str] | None]
PREDICT = dict.fromkeys(("run", "allow", "model", "output", "key", "client"))
"""The same of `flfast.predict`."""

_PACKAGES = {
    "predictions=parquet": (("pyarrow",), "parquet"),
    "format=onnx": (("onnx", "onnxscript", "onnxruntime"), "onnx"),
}
"""Packages that a setting needs, and the extra that has them."""

_REPEATED = "allow"

_ABSENT = object()


def allowed_names(options: Mapping[str, str]) -> list[str]:
    """What `allow=A,B` names."""
    return [name for name in options.get(_REPEATED, "").split(",") if name]


def read_options(
    words: Sequence[str], known: Mapping[str, Sequence[str] | None]
) -> tuple[dict[str, str], list[str]]:
    """Divide the words of a command into its own options and overrides of the run's config.

    `known` has the values that are allowed by option; None allows any.

    Raises:
        ConfigError: one line per word that is wrong or missing, and if a package is missing.
    """
    options: dict[str, str] = {}
    overrides: list[str] = []
    problems: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or key.startswith("-"):
            problems.append(f"{word}: not a setting; allowed: key=value")
        elif key not in known:
            overrides.append(at_home(word))
        elif not value:
            problems.append(f"{word}: has no value")
        elif (allowed := known[key]) is not None and value not in allowed:
            problems.append(f"{word}: allowed: {', '.join(allowed)}")
        else:
            earlier = [options[key]] if key == _REPEATED and key in options else []
            options[key] = ",".join([*earlier, os.path.expanduser(value)])  # noqa: PTH111
    given = {word.partition("=")[0] for word in words}
    required = {"run": "set it to the folder of a run", "format": "allowed: torch, onnx"}
    missing = [key for key in required if key in known and key not in given]
    problems += [f"{key} is missing; {required[key]}" for key in missing]
    problems += _unusable(options, output="folder" if known is EVALUATE else "file")
    if problems:
        raise ConfigError("\n".join(problems))
    return options, overrides


def _unusable(options: Mapping[str, str], *, output: str) -> Iterator[str]:
    client = options.get("client", "0")
    if not (client.isascii() and client.isdigit()):
        yield f"client={client}: allowed: the number of a client"
    if "output" in options and (path := Path(options["output"])).exists():
        kind = "folder" if path.is_dir() else "file"
        if kind != output:
            yield f"output={path} is a {kind}; allowed: a {output}, or a new path"
    for setting, (packages, extra) in _PACKAGES.items():
        key, _, value = setting.partition("=")
        missing = [name for name in packages if not find_spec(name)]
        if options.get(key) == value and missing:
            yield f"{setting} needs {', '.join(missing)}: pip install 'flfast[{extra}]'"


def check_known(overrides: Iterable[str], config: DictConfig, known: Sequence[str]) -> None:
    """Refuse overrides of keys that do not exist, or change nothing; `known` ones are suggested.

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


def overridden(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A copy of a composed config with overrides in Hydra's grammar.

    They are `group=option`, `key=value`, and `+key=value` for a key that is not there.

    Raises:
        ConfigError: naming the override, and what is allowed.
    """
    check_overrides(overrides)
    changed = deepcopy(config)
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(first_line(error)) from None
    groups = [item for item in parsed if options_of(item.key_or_group)]
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
