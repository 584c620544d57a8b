"""Composes configs as Hydra does, without Hydra's global state. Torch-free."""

import threading
from collections.abc import Sequence
from pathlib import Path

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig

VERSION_BASE = "1.3"

_INSTALLED = Path(__file__).parents[1] / "conf"
CONF = str(_INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "conf")
"""Folder of the config."""

_version_base = threading.Lock()


def options_of(group: str) -> dict[str, Path]:
    """Files of flfast's own options of a group, by name; there are none if it is no group."""
    return {path.stem: path for path in sorted(Path(CONF, group).glob("*.yaml"))}


def compose(
    overrides: Sequence[str], *, name: str = "config", sources: ConfigSearchPath | None = None
) -> DictConfig:
    """The config with Hydra's own node `hydra`; may be called anywhere, at any time.

    Overrides are as on the command line, and the file's name is without its ending. `sources` is
    where groups are looked for; None: in `CONF` only.

    Raises:
        HydraException: if an override names no key, no option, or has another syntax.
    """
    if sources is None:
        sources = create_config_search_path(CONF)
    setup_globals()  # the resolvers of Hydra; registering them again changes nothing
    # Hydra reads its version base from a singleton, which may be that of another Hydra app.
    with _version_base:
        singleton = version.VersionBase.instance()
        before = singleton.version_base
        version.setbase(VERSION_BASE)
        try:
            return ConfigLoaderImpl(sources).load_configuration(
                name, list(overrides), run_mode=RunMode.RUN, from_shell=False
            )
        finally:
            singleton.version_base = before


def sources_of(composed: DictConfig) -> ConfigSearchPath:
    """Where a composed config's groups were looked for, `--config-dir` included."""
    sources = ConfigSearchPathImpl()
    for source in composed.hydra.runtime.config_sources:
        sources.append(source.provider, f"{source.schema}://{source.path}")
    return sources


def without_hydra(composed: DictConfig) -> DictConfig:
    """The config of the run: without Hydra's own node. Changes its argument."""
    composed._set_flag(["struct", "readonly"], [False, False])  # noqa: SLF001 - as open_dict does
    del composed["hydra"]
    composed._set_flag(["struct", "readonly"], [True, None])  # noqa: SLF001
    return composed
