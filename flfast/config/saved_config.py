"""Reads the config of a saved run, which may be a stranger's: nothing in it is run. Torch-free."""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader

from flfast.config.check import check
from flfast.config.completed import completed
from flfast.config.errors import ConfigError
from flfast.config.trust import refusals, short
from flfast.state.messages import first_line, printable
from flfast.state.plain_yaml import read_yaml

log = logging.getLogger(__name__)

_OWN = (
    r"\$\{(?:(?P<env>oc\.env:FLFAST_DATA,data)"
    r"|oc\.select:(?P<select>[A-Za-z_]\w*(?:\.\w+)*),(?P<default>\w+)"
    r"|(?P<key>[A-Za-z_]\w*(?:\.\w+)*))\}"
)
"""Interpolations of flfast's own options; no other one is looked up in a saved run."""

_RESOLVER = r"[A-Za-z_][\w.]*"

_LONGEST_CHAIN = _MOST_REFERENCES = 20
_LONGEST_TEXT = 1000  # with an interpolation in it

_OUTWARD = {"cache": None, "cache_dir": None, "download": False}
"""Arguments of data that write outside of the run's folder or open the network, and what is used
instead unless the command sets them: the folder may be a stranger's."""

_WRITERS = {"logger": None, "callbacks": None, "resume": None, "overwrite": False}
"""Keys that write the files of a run, and their values for one that is only read.

Some of the run's own values exist in a job of Hydra only.
"""


def read_config(folder: Path, allow: Sequence[str] = ()) -> DictConfig:
    """The config of the run in a folder, with values in place of interpolations.

    Keys that later versions have are added.

    Loggers and callbacks are left out.
    `allow` are packages, modules or functions that the user trusts, by dotted path; also resolvers
    of interpolations, such as `oc.env`.

    Raises:
        ConfigError: if there is none, or it names a target that is neither an option of flfast
            nor allowed.
    """
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        raise ConfigError(
            f"run={folder}: there is no {path.relative_to(folder)}; allowed: the folder of a run"
        )
    try:
        # Numbers such as 1e-3 are read as Hydra reads them.
        raw = read_yaml(path, dict, get_yaml_loader())  # a safe loader
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(printable(first_line(error))) from None
    raw |= _WRITERS
    if isinstance(raw.get("trainer"), dict):
        raw["trainer"]["profiler"] = None
    with of_config(folder):
        plain = _Values(raw, allow).plain(raw)
        _keep_inside(plain.get("data"), "data", allow)
        problems = list(refusals(plain, allow))
        if problems:
            raise ConfigError("\n".join(problems))
    try:
        return OmegaConf.create(completed(plain))
    except Exception as error:  # noqa: BLE001 - OmegaConf has no common exception
        raise ConfigError(printable(f"{path}: {first_line(error)}")) from None


def _keep_inside(data: Any, key: str, allow: Sequence[str]) -> None:
    """Set what data of a saved run would write or download, also in a source of other data."""
    if not isinstance(data, dict) or data.get("_target_") in allow:
        return
    for name in _OUTWARD.keys() & data.keys():
        if data[name] and name != "download":
            given = f"{printable(key)}.{name}={short(data[name])}"
            log.warning("%s: of a saved run, it is only used if the command sets it", given)
        data[name] = _OUTWARD[name]
    for name, part in data.items():
        _keep_inside(part, f"{key}.{name}", allow)


def check_saved(config: DictConfig, folder: Path) -> None:
    """Check the config of a saved run, as it was read, like that of a new one.

    Raises:
        ConfigError: with the path of the config, and all that is wrong with it.
    """
    with of_config(folder):
        check(config)


@contextmanager
def of_config(folder: Path) -> Iterator[None]:
    """Context in which messages about settings name the config of the run in a folder."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{folder / '.hydra' / 'config.yaml'}: {error}") from None


class _Values:
    """Looks interpolations up in a config, each once; also with resolvers that the user allows."""

    def __init__(self, raw: dict[str, Any], allow: Sequence[str]) -> None:
        self._raw = raw
        self._known: dict[str, Any] = {}
        names = [re.escape(name) for name in allow if re.fullmatch(_RESOLVER, name)]
        trusted = rf"\$\{{(?P<trusted>{'|'.join(names) or '(?!)'}):[^${{}}]*\}}"
        self._reference = re.compile(f"{_OWN}|{trusted}")

    def plain(self, node: Any, key: str = "") -> Any:
        """A part of the config with values in place of interpolations.

        Raises:
            ConfigError: if it has one that is not of flfast's own options, or that leads nowhere.
        """
        if isinstance(node, dict):
            return {name: self.plain(child, f"{key}.{name}") for name, child in node.items()}
        if isinstance(node, list):
            return [self.plain(child, f"{key}.{place}") for place, child in enumerate(node)]
        return self._value(node, key.lstrip("."), ())

    def _value(self, value: Any, key: str, chain: tuple[str, ...]) -> Any:
        if not isinstance(value, str) or "${" not in value:
            return value
        where = f"{printable(key)}={short(value)}"
        if len(chain) > _LONGEST_CHAIN:
            raise ConfigError(f"{where}: the interpolation is circular")
        rest = self._reference.sub("", value)
        if "${" in rest or value.count("${") > _MOST_REFERENCES:
            name = re.search(rf"\$\{{({_RESOLVER}):", rest)
            trust = f"; or allow={name[1]}, if you trust the folder" if name else ""
            raise ConfigError(
                f"{where}: is not looked up in a saved run; allowed: the key of a value, such as "
                f"${{rounds}}{trust}"
            )
        whole = self._reference.fullmatch(value)
        if whole:
            return self._look_up(whole, where, chain)
        found = self._reference.sub(lambda match: str(self._look_up(match, where, chain)), value)
        if "${" in found or len(found) > _LONGEST_TEXT:
            raise ConfigError(f"{where}: allowed: a text of at most {_LONGEST_TEXT} characters")
        return found

    def _look_up(self, match: re.Match[str], where: str, chain: tuple[str, ...]) -> Any:
        if match["env"]:
            return os.environ.get("FLFAST_DATA", "data")
        if match["trusted"]:
            return _resolved(match[0], where)
        key = match["select"] or match["key"]
        if key not in self._known:
            found = self._node(key)
            if isinstance(found, (dict, list)):
                raise ConfigError(f"{where}: {key} has several values; allowed: the key of one")
            self._known[key] = self._value(found, key, (*chain, key))
        if self._known[key] is not _ABSENT:
            return self._known[key]
        if match["default"] is None:
            raise ConfigError(f"{where}: there is no {key}")
        return yaml.safe_load(match["default"])

    def _node(self, key: str) -> Any:
        node: Any = self._raw
        for name in key.split("."):
            node = node.get(name, _ABSENT) if isinstance(node, dict) else _ABSENT
        return node


_ABSENT = object()


def _resolved(text: str, where: str) -> Any:
    try:
        return OmegaConf.to_container(OmegaConf.create([text]), resolve=True)[0]  # type: ignore[index]
    except Exception as error:  # noqa: BLE001 - resolvers raise anything
        raise ConfigError(f"{where}: {printable(first_line(error))}") from None
