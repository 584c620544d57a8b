"""Builds the data of a run: loaded, partitioned and split."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch.core.hooks import DataHooks
from omegaconf import DictConfig, OmegaConf

from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING, Own, is_data_module
from flfast.config.values import choice
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading
from flfast.datamodules.own_samples import own_examples
from flfast.datamodules.prepared import prepared_as
from flfast.datamodules.preprocessing import Preprocessing
from flfast.datamodules.remote_data import RemoteData
from flfast.datamodules.sources.source import examples_from
from flfast.datamodules.splits import Split
from flfast.setup.data_modules import load
from flfast.setup.preload import data_source, given_task
from flfast.setup.user_code import named, of_kind
from flfast.state.injection import asks_for

log = logging.getLogger(__name__)


def load_for_node(config: DictConfig, objects: Own) -> Examples | None:
    """Examples for all ranks of a node; None from functions of users, which may do more."""
    node = OmegaConf.to_yaml(config.data)
    ours = node.count("_target_: ") == node.count("_target_: flfast.")
    once = ours or "download: true" in node or is_data_module(config.data)
    if objects.data is not None or not once:
        return None
    torch.set_num_threads(config.threads)
    return _source(config, objects)(config.seed)


def build_data(
    config: DictConfig, objects: Own = NOTHING, kept: Preprocessing | None = None
) -> FederatedDataModule:
    """The data of all clients, loaded, partitioned and split.

    With `kept`, what a saved run made of raw values, they are made likewise.

    Raises:
        ConfigError: if `task` is not that of the data, or these are not like those of `kept`.
    """
    pins = config.loader.pin_memory and torch.cuda.is_available()
    loading = Loading(**config.loader)._replace(pin_memory=pins)
    split = Split(**config.split, clients=config.sampler.get("holdout_clients", 0))
    if isinstance(objects.data, partial) and objects.data.func is RemoteData:
        data: FederatedDataModule = objects.data(seed=config.seed, split=split, loading=loading)
    else:
        data = FederatedDataModule(
            _source(config, objects, kept),
            instantiate(config.partition),
            seed=config.seed,
            split=split._replace(pooled=config.mode == "centralized", only=objects.client),
            loading=loading._replace(samples=config.task == "module"),
            shift=instantiate(config.shift),
        )
    data.setup()
    _log_unused(config, data, objects)
    task = data.examples.task
    if config.task not in {"auto", task}:
        raise ConfigError(
            f"task={config.task}: data={choice(config.data)} are for task={task}; "
            f"allowed: auto or {task}"
        )
    return data


def _log_unused(config: DictConfig, data: FederatedDataModule, objects: Own) -> None:
    """Say which settings of data change nothing, or do something else than they do elsewhere."""
    if config.loader.pin_memory and not torch.cuda.is_available():
        log.warning("loader.pin_memory=True changes nothing: there is no GPU")
    named_owner = config.data.get("owner") not in {None, "auto"}
    named_owner |= data.examples.datamodule is not None
    if named_owner and data.examples.owner is not None and not asks_for(data.partition, "owner"):
        log.warning(
            "data.owner=%s: partition=%s makes other clients; partition=natural keeps these",
            *(config.data.get("owner", "clients"), choice(config.partition)),
        )
    size = data.examples.batch_size
    if size not in {None, config.batch_size}:
        log.info(
            "batch_size=%s: train_dataloader has %d; batch_size=%d takes that",
            *(config.batch_size, size, size),
        )
    if len(data.central_val) and config.split.val:
        log.info(
            "split.val=%g holds out nothing: the data have a validation set", config.split.val
        )
    is_marked = config.data.get("is_test") not in {None, "auto"} or data.examples.stride
    if objects.client and not (is_marked or data.owner.any()) and config.data.get("test_fraction"):
        log.warning(
            "data.test_fraction=%g: test rows are drawn here, other ones than in a simulation",
            config.data.test_fraction,
        )


def _source(
    config: DictConfig, objects: Own, kept: Preprocessing | None = None
) -> Callable[..., Examples]:
    given = objects.data
    if isinstance(given, Examples):
        return lambda: prepared_as(kept, given)
    target = config.data["_target_"]

    def source(seed: int) -> Examples:
        with named("data", target):
            chosen, task = data_source(config) if given is None else given, given_task(config)
            if task == "forecasting" and given is None and asks_for(chosen, "task"):
                raise ValueError("task=forecasting needs series; allowed: data=series or loads")
            task = task or (None if kept is None or kept.task == "module" else kept.task)
            found = examples_from(chosen, seed=seed, task=task, kept=kept)
            if isinstance(found, DataHooks):
                keys = ("data.owner", "data.labels")
                client, labels = (_name_or_function(config, key) for key in keys)
                found = own_examples(load(f"data={target}", found, client), labels, keys)
        allowed = "an Examples of flfast, or a LightningDataModule"
        return prepared_as(kept, of_kind(found, Examples, f"data={target}", allowed=allowed))

    return source


def _name_or_function(config: DictConfig, key: str) -> Any:
    """Where the clients or labels of samples are; a node is a function of a sample."""
    given = OmegaConf.select(config, key)
    if not isinstance(given, DictConfig):
        return given
    with named(key, str(given)):
        return instantiate(given, _partial_=True)
