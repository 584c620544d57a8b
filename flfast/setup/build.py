"""Builds a run's components from config nodes: data, model, algorithm, optimizer, Trainer, ..."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch.core.hooks import DataHooks
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.optim import Optimizer

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer
from flfast.algorithms.local import local
from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING, Own, is_data_module
from flfast.config.rule import choice
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading
from flfast.datamodules.own_samples import own_examples
from flfast.datamodules.remote_data import RemoteData
from flfast.datamodules.sources.source import examples_from
from flfast.datamodules.splits import Split
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.samplers.uniform import uniform
from flfast.lit.batchnorm import batchnorm_layers, batchnorm_weights
from flfast.lit.module_optimizer import ModuleOptimizer
from flfast.setup.data_modules import load
from flfast.setup.preload import data_source, given_task
from flfast.setup.user_code import named, of_kind
from flfast.state.injection import asks_for, call_with
from flfast.state.optimizer_state import LOCAL_MESSAGE, state_tensors, trial_step
from flfast.state.tree import Tree
from flfast.state.weights import WEIGHTS, by_name, load_weights, read_state_dict

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


def build_data(config: DictConfig, objects: Own = NOTHING) -> FederatedDataModule:
    """The data of all clients, loaded, partitioned and split.

    Raises:
        ConfigError: if `task` is not that of the data.
    """
    loading = Loading(**config.loader)
    if loading.pin_memory and not torch.cuda.is_available():
        log.warning("loader.pin_memory=True changes nothing: there is no GPU")
        loading = loading._replace(pin_memory=False)
    split = Split(**config.split, clients=config.sampler.get("holdout_clients", 0))
    if isinstance(objects.data, partial) and objects.data.func is RemoteData:
        data: FederatedDataModule = objects.data(seed=config.seed, split=split, loading=loading)
    else:
        data = FederatedDataModule(
            _source(config, objects),
            instantiate(config.partition),
            seed=config.seed,
            split=split._replace(pooled=config.mode == "centralized", only=objects.client),
            loading=loading._replace(samples=config.task == "module"),
            shift=instantiate(config.shift),
        )
    data.setup()
    named_owner = config.data.get("owner") not in {None, "auto"}
    named_owner |= data.examples.datamodule is not None
    if named_owner and data.examples.owner is not None and not asks_for(data.partition, "owner"):
        name = config.partition["_target_"].rpartition(".")[2]
        log.warning(
            "data.owner=%s: partition=%s makes other clients; partition=natural keeps these",
            *(config.data.get("owner", "clients"), name),
        )
    if data.examples.batch_size not in {None, config.batch_size}:
        own_size = data.examples.batch_size
        log.info(
            "batch_size=%s: train_dataloader has %d; batch_size=%d takes that",
            *(config.batch_size, own_size, own_size),
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
    found = data.examples.task
    if config.task not in {"auto", found}:
        raise ConfigError(
            f"task={config.task}: data={choice(config.data)} are for "
            f"task={found}; allowed: auto or {found}"
        )
    return data


def _source(config: DictConfig, objects: Own) -> Callable[..., Examples]:
    given = objects.data
    if isinstance(given, Examples):
        return lambda: given
    target = config.data["_target_"]

    def source(seed: int) -> Examples:
        with named("data", target):
            chosen, task = data_source(config) if given is None else given, given_task(config)
            if task == "forecasting" and given is None and asks_for(chosen, "task"):
                raise ValueError("task=forecasting needs series; allowed: data=series or loads")
            found = examples_from(chosen, seed=seed, task=task)
            if isinstance(found, DataHooks):
                keys = ("data.owner", "data.labels")
                client, labels = (_name_or_function(config, key) for key in keys)
                found = own_examples(load(f"data={target}", found, client), labels, keys)
        allowed = "an Examples of flfast, or a LightningDataModule"
        return of_kind(found, Examples, f"data={target}", allowed=allowed)

    return source


def _name_or_function(config: DictConfig, key: str) -> Any:
    """Where the clients or labels of samples are; a node is a function of a sample."""
    given = OmegaConf.select(config, key)
    if not isinstance(given, DictConfig):
        return given
    with named(key, str(given)):
        return instantiate(given, _partial_=True)


def build_optimizer(
    config: DictConfig, model: nn.Module, algorithm: Algorithm, of_module: ModuleOptimizer | None
) -> Callable[..., Optimizer]:
    """The function that makes local optimizers: (parameters, lr=...) -> an optimizer.

    It is tried: one step on copies of the model's parameters. `of_module` is a LightningModule's.

    Raises:
        ConfigError: if the optimizer cannot be made or cannot take a step.
        ValueError: if the algorithm sends or keeps its state, and this is not tensors.
    """
    target = config.optimizer["_target_"]
    if target.endswith(ModuleOptimizer.__name__):
        if of_module is None:
            raise ConfigError(
                "optimizer=module: the model has no configure_optimizers; allowed: optimizer=sgd "
                "or another"
            )
        return of_module
    with named("optimizer", target):
        make: Callable[..., Optimizer] = instantiate(config.optimizer)
        trained = [p for p in model.parameters() if p.requires_grad]
        copies = [p.detach().clone().requires_grad_() for p in trained]
        made, allowed = make(copies, lr=config.optimizer.lr), "a torch.optim.Optimizer"
        optimizer = of_kind(made, Optimizer, f"optimizer={target}", allowed=allowed)
        trial_step(optimizer, copies)
    if algorithm.optimizer is not None:
        for p in copies:
            state_tensors(optimizer.state[p], **LOCAL_MESSAGE)
    return make


def initial_weights(config: DictConfig, weights: Tree) -> Tree:
    """Weights before round 1: the given ones of the model, or those in the file `init_from`.

    Raises:
        ValueError: if the file holds no weights, or those of another model.
    """
    if config.init_from is None:
        return weights
    found = read_state_dict(config.init_from, key="init_from", names=by_name(weights))
    return load_weights(weights, found, source=f"init_from={config.init_from}")


def build_algorithm(
    config: DictConfig, initial: Tree, model: nn.Module, objects: Own = NOTHING, **offers: Any
) -> Algorithm:
    """The algorithm, with the wrappers that `mode`, `bn` and `local_optimizer_state` ask for.

    `offers` are further arguments that its function may ask for.

    Raises:
        ConfigError: if the option or the function gives no `Algorithm`, or statistics shall be
            measured again that the server does not send.
    """
    batchnorm = batchnorm_weights(model, initial)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    frozen |= batchnorm["params"].keys() if config.bn == "frozen" else set()
    weights = {"initial": initial, "batchnorm": batchnorm, "members": (initial,)}
    offers = {**weights, "frozen": frozen, "common": None, "seed": config.seed, **offers}
    algorithm = _algorithm(config, objects, offers)
    if config.mode != "federated" and algorithm.name != "fedavg":
        log.warning("mode=%s does not use algorithm=%s", config.mode, algorithm.name)
    if config.mode == "local_only":
        algorithm = local(initial=initial)
    elif config.mode == "centralized":
        algorithm = Algorithm(name="centralized")
    has_batchnorm = any(True for _ in batchnorm_layers(model))
    if config.bn != "aggregate" and not has_batchnorm:
        log.warning("bn=%s changes nothing: the model has no BatchNorm", config.bn)
    elif config.bn == "recalibrate" and not _sends_statistics(algorithm, initial, model):
        raise ConfigError(
            f"bn=recalibrate with algorithm={algorithm.name}: clients do not share the statistics "
            f"of BatchNorm; use bn=aggregate"
        )
    elif config.bn == "local":
        algorithm = keep_local(algorithm, batchnorm)
    return _with_optimizer_state(config.local_optimizer_state, algorithm)


def _with_optimizer_state(state: str, algorithm: Algorithm) -> Algorithm:
    """The algorithm with what becomes of a local optimizer's state between rounds."""
    if state == "reset":
        return algorithm
    if any(call.training_stages for call in algorithm.calls):
        raise ConfigError(
            f"local_optimizer_state={state} with algorithm={algorithm.name}, whose rounds train "
            f"different weights in turn; allowed: reset"
        )
    return keep_optimizer(algorithm) if state == "keep" else average_optimizer(algorithm)


def _algorithm(config: DictConfig, objects: Own, offers: dict[str, Any]) -> Algorithm:
    target = config.algorithm["_target_"]
    with named("algorithm", target):
        given = objects.algorithm
        made: object = instantiate(config.algorithm) if given is None else given
        if callable(made) and not isinstance(made, Algorithm):
            if offers["common"] is not None and not asks_for(made, "common"):
                log.warning("model.common changes nothing: algorithm=%s has no such model", target)
            made = call_with(made, **offers)
        found = of_kind(made, Algorithm, f"algorithm={target}", allowed="an Algorithm of flfast")
        missing = {*WEIGHTS} - found.server_state(offers["initial"]).keys()
    if missing:
        raise ConfigError(
            f"algorithm={target}: its server state has no {' and no '.join(sorted(missing))}; "
            f"allowed: the initial weights beside what it adds, though the server may not use them"
        )
    return found


def build_selection(
    config: DictConfig, algorithm: Algorithm, data: FederatedDataModule
) -> Algorithm:
    """The algorithm in the wrapper that selects the clients that train.

    Raises:
        ValueError: if the selection cannot select clients for this algorithm.
    """
    offers = {"num_clients": data.num_clients, "seed": config.seed}
    return call_with(instantiate(config.selection), algorithm, **offers)


def _sends_statistics(algorithm: Algorithm, initial: Tree, model: nn.Module) -> bool:
    broadcast = algorithm.broadcast(algorithm.server_state(initial))
    shared = {name: broadcast.get(name, {}) for name in ("params", "buffers")}
    return bool(batchnorm_weights(model, shared)["buffers"])


def build_sampler(config: DictConfig) -> Callable[..., Cohort]:
    """(num_clients, rng) -> cohort; the centralised baseline's only client is always drawn."""
    if config.mode == "centralized":
        return partial(uniform, fraction=1.0, count=None, dropout=0.0)
    return instantiate({k: v for k, v in config.sampler.items() if k != "holdout_clients"})
