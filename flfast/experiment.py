"""From a checked config to a run."""

import logging
import warnings
from functools import partial
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf

from flfast.algorithms.algorithm import Algorithm
from flfast.building import (
    build_algorithm,
    build_callbacks,
    build_data,
    build_model,
    build_plans,
    build_sampler,
    build_trainer,
    check_sharding,
    initial_weights,
    run_dir,
)
from flfast.config.errors import ConfigError
from flfast.config.phases import Phase
from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.loop import DivergedError, Federation
from flfast.lit.engines.engine import Engine
from flfast.lit.module import LocalModule, check_optimizer_state
from flfast.lit.world import World
from flfast.state.store import ClientStates

log = logging.getLogger(__name__)


def run_experiment(phases: list[Phase], world: World) -> float | None:
    """Build a federation from a checked config and run it, as one rank of a world.

    Returns:
        `optimized_metric` after the last round.

    Raises:
        ConfigError: if data, model or devices refuse the settings, or every client diverges.
    """
    try:
        federation = build(phases, world)
        federation.cohort(1)  # a sampler that asks too much says so here
    except (ValueError, TypeError, OSError, MisconfigurationException) as error:
        raise ConfigError(str(error)) from error
    except InstantiationException as error:
        raise ConfigError(str(error.__cause__ or error)) from error
    try:
        history = federation.run()
    except (DivergedError, MisconfigurationException) as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            "a batch of one example met BatchNorm, which has no variance to divide by; raise "
            "batch_size, micro_batch or partition.min_samples, or use model.norm=group"
        ) from error
    value = history[-1].get(phases[0].config.optimized_metric)
    return None if value is None else float(value)


def build(phases: list[Phase], world: World) -> Federation:
    """Everything a run needs, from data to loggers, in the order it is needed."""
    config = phases[0].config
    quiet_lightning()
    torch.set_num_threads(config.threads)
    data = build_data(config)
    model = build_model(config, data)
    initial = initial_weights(config, model)
    algorithm = build_algorithm(config, initial, model)
    callbacks = build_callbacks(config)
    make_trainer = partial(build_trainer, phases, callbacks, world)
    plans = build_plans(phases, model)
    make_optimizer = instantiate(config.optimizer)
    if algorithm.optimizer is not None:
        check_optimizer_state(make_optimizer, lr=config.optimizer.lr)
    module = LocalModule(model, algorithm, make_optimizer, freeze_batchnorm=config.bn == "frozen")
    make_optimizer(module.parameters(), lr=config.optimizer.lr)  # its own checks, before training
    check_sharding(phases, model, make_optimizer, world)
    loggers = list((instantiate(config.logger) or {}).values())
    for logger in loggers:
        logger.log_hyperparams(OmegaConf.to_container(config, resolve=True))
    engine = instantiate(config.engine)(module, data, make_trainer, ClientStates(), world)
    check_metric(config, engine)
    title = describe(config, algorithm, data)
    log.info("%s | engine %s, %s", title, engine.name, plans(1, []).describe())
    return Federation(
        algorithm=algorithm,
        engine=engine,
        data=data,
        sampler=build_sampler(config),
        plans=plans,
        initial=initial,
        rounds=1 if config.trainer.fast_dev_run else config.rounds,
        eval_every=config.eval_every,
        seed=config.seed,
        recalibrate=config.bn == "recalibrate",
        callbacks=callbacks,
        loggers=loggers,
        run_dir=run_dir(),
        title=title,
    )


def check_metric(config: DictConfig, engine: Engine) -> None:
    """Make sure that `optimized_metric` will be measured."""
    view = config.optimized_metric.partition("/")[0]
    if view not in {"train", *engine.evaluation_sets}:
        raise ValueError(
            f"optimized_metric={config.optimized_metric} will not be measured: there is no such "
            f"model or no such data; allowed: {', '.join(sorted(engine.evaluation_sets))} metrics "
            f"and train/loss"
        )


def describe(config: DictConfig, algorithm: Algorithm, data: FederatedDataModule) -> str:
    """One line that says what runs."""
    choices: Any = HydraConfig.get().runtime.choices
    name = algorithm.name if config.mode == "federated" else config.mode
    parts = [name, choices.data, choices.partition, choices.model, f"{data.num_clients} clients"]
    return " · ".join(str(part) for part in parts)


def quiet_lightning() -> None:
    """Lightning announces devices and the end of every fit; a thousand clients would, too."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
