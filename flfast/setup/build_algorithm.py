"""Builds the optimizer of local training, and the algorithm of a run with its wrappers."""

import logging
from collections.abc import Callable
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn
from torch.optim import Optimizer

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer
from flfast.algorithms.local import local
from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING, Own
from flfast.datamodules.federated import FederatedDataModule
from flfast.lit.batchnorm import batchnorm_layers, batchnorm_weights
from flfast.lit.module_optimizer import ModuleOptimizer
from flfast.setup.user_code import named, of_kind
from flfast.state.injection import asks_for, call_with
from flfast.state.optimizer_state import LOCAL_MESSAGE, state_tensors, trial_step
from flfast.state.tree import Tree
from flfast.state.weights import WEIGHTS

log = logging.getLogger(__name__)


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
    if algorithm.kit.optimizer is not None:
        for p in copies:
            state_tensors(optimizer.state[p], **LOCAL_MESSAGE)
    return make


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
    if any(call.training_stages for call in algorithm.cohort_calls):
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
