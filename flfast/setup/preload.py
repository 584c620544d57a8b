"""Imports modules and loads shared data once, before jobs are forked."""

import importlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from flfast.config.check import check
from flfast.config.errors import ConfigError
from flfast.config.own import is_data_module, passed
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.source import examples_from
from flfast.state.injection import asks_for
from flfast.state.native.compiler import missing
from flfast.tasks.names import TaskName

log = logging.getLogger(__name__)

_LATER = ("flfast.setup.launch", "flfast.engines.auto", "torch.fx.experimental.proxy_tensor")
"""Modules that a run imports when it needs them, and that take long."""

_loaded: dict[str, Examples] = {}
"""Examples by the config of their source."""


def preload(configs: Sequence[DictConfig]) -> None:
    """Import what the runs will need, and load the data that several of them share.

    Data that depend on the seed are left to the runs. Torch has one thread here: a forked
    process has no copy of a pool of threads.
    """
    for name in _LATER:
        importlib.import_module(name)
    torch.set_num_threads(1)
    for config in configs[:1]:
        with suppress(ConfigError):  # the jobs say so; the signatures that it read stay in memory
            check(OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]))
    fused = any("Eager" not in config.engine["_target_"] for config in configs)
    if fused or any("quantize" in config.compression["_target_"] for config in configs):
        missing()  # compiles our C++, if that has not been done on this machine
    keys = [_key(config) for config in configs]
    for config, key in zip(configs, keys, strict=True):
        if key in _loaded or keys.count(key) == 1:
            continue
        try:
            source: Callable[..., Examples] = instantiate(config.data)
            if not asks_for(source, "seed"):
                _loaded[key] = examples_from(source, task=given_task(config))
        except Exception as error:  # noqa: BLE001 - the jobs say so, with a better message
            log.debug("the jobs load their data themselves: %s", error)


def data_source(config: DictConfig) -> Callable[..., Examples]:
    """The function that returns the run's examples, which `preload` may have loaded."""
    examples = _loaded.get(_key(config))
    if examples is not None:
        return lambda: examples
    if is_data_module(config.data):
        plain: Any = OmegaConf.to_container(config.data, resolve=True)
        return partial(instantiate, passed(plain), _convert_="all")
    source: Callable[..., Examples] = instantiate(config.data)
    return source


def given_task(config: DictConfig) -> TaskName | None:
    """The task that the config names, which a source gets that asks for it.

    For a user's module, data are of whatever task they are for.
    """
    return None if config.task in {"auto", "module"} else config.task


def _key(config: DictConfig) -> str:
    node: Any = OmegaConf.to_yaml(config.data, resolve=True)
    return f"{config.task} {node}"
