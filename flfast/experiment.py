"""From a checked config to a run: the only place that knows both Hydra and torch."""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf
from torch import nn

from flfast.algorithms.algorithm import Algorithm
from flfast.algorithms.keep_local import keep_local
from flfast.algorithms.local import local
from flfast.algorithms.local_optimizer import average_optimizer, keep_optimizer
from flfast.config.errors import ConfigError
from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.federation.learning_rate import learning_rates
from flfast.federation.loop import DivergedError, Federation
from flfast.injection import call_with
from flfast.lit.batchnorm import batchnorm_layers, batchnorm_weights
from flfast.lit.devices import single_device
from flfast.lit.module import LocalModule
from flfast.plan import Batching, RoundPlan
from flfast.randomness import seed_torch
from flfast.state.store import ClientStates
from flfast.state.tree import Tree
from flfast.state.weights import load_weights, read_weights

log = logging.getLogger(__name__)


def run_experiment(config: DictConfig) -> float | None:
    """Build a federation from a checked config and run it.

    Returns:
        `optimized_metric` after the last round; None if it was not measured.

    Raises:
        ConfigError: if data, model or devices refuse the settings.
    """
    try:
        federation = build(config)
        federation.cohort(1)  # a sampler that asks too much says so here
    except (ValueError, TypeError, OSError, MisconfigurationException) as error:
        raise ConfigError(str(error)) from error
    except InstantiationException as error:
        raise ConfigError(str(error.__cause__ or error)) from error
    try:
        history = federation.run()
    except DivergedError as error:
        raise ConfigError(str(error)) from error
    value = history[-1].get(config.optimized_metric)
    return None if value is None else float(value)


def build(config: DictConfig) -> Federation:
    """Everything a run needs, from data to loggers, in the order it is needed."""
    quiet_lightning()
    torch.set_num_threads(config.threads)
    data = build_data(config)
    model = build_model(config, data)
    initial = initial_weights(config, model)
    algorithm = build_algorithm(config, initial, model)
    if config.optimized_metric.startswith("personal/") and algorithm.personal is None:
        raise ValueError(
            f"optimized_metric={config.optimized_metric}: clients of algorithm={algorithm.name} "
            f"have no personal models; allowed: val/, global/, local/ metrics and train/loss"
        )
    callbacks = list((instantiate(config.callbacks) or {}).values())
    trainer = build_trainer(config, callbacks)
    plans = build_plans(config, model, trainer)
    module = LocalModule(
        model,
        algorithm,
        instantiate(config.optimizer),
        freeze_batchnorm=config.bn == "frozen",
    )
    module.make_optimizer([torch.nn.Parameter(torch.zeros(1))], lr=config.optimizer.lr)
    loggers = list((instantiate(config.logger) or {}).values())
    for logger in loggers:
        logger.log_hyperparams(OmegaConf.to_container(config, resolve=True))
    engine = instantiate(config.engine)(module, data, lambda: trainer, ClientStates())
    title = describe(config, algorithm, data)
    log.info("%s | engine %s, %s, %s", title, engine.name, plans(1).devices, plans(1).precision)
    return Federation(
        algorithm=algorithm,
        engine=engine,
        data=data,
        sampler=instantiate(config.sampler),
        plans=plans,
        initial=initial,
        rounds=1 if config.trainer.fast_dev_run else config.rounds,
        eval_every=config.eval_every,
        seed=config.seed,
        recalibrate=config.bn == "recalibrate",
        callbacks=callbacks,
        loggers=loggers,
        run_dir=Path(HydraConfig.get().runtime.output_dir),
        title=title,
    )


def build_data(config: DictConfig) -> FederatedDataModule:
    """The population, loaded, partitioned and split."""
    data = FederatedDataModule(
        instantiate(config.data),
        instantiate(config.partition),
        seed=config.seed,
        split=Split(**config.split),
        loading=Loading(**config.loader),
        pooled=config.mode == "centralized",
    )
    data.setup()
    return data


def build_model(config: DictConfig, data: FederatedDataModule) -> nn.Module:
    """The model for the data's shape and classes, initialised from the seed."""
    seed_torch(config.seed, "initial weights")
    make = instantiate(config.model)
    if isinstance(make, nn.Module):
        return make
    shape = data.examples.input_shape
    return call_with(make, input_shape=shape, num_classes=data.num_classes)


def initial_weights(config: DictConfig, model: nn.Module) -> Tree:
    """Weights before round 1: the model's own, or those of `init_from`."""
    weights = read_weights(model)
    if config.init_from is None:
        return weights
    state_dict = torch.load(config.init_from, map_location="cpu", weights_only=True)
    return load_weights(weights, state_dict, source=config.init_from)


def build_algorithm(config: DictConfig, initial: Tree, model: nn.Module) -> Algorithm:
    """The algorithm in the clothes of mode, BatchNorm policy and optimizer state."""
    algorithm = local() if config.mode == "local_only" else instantiate(config.algorithm)
    if config.bn == "local":
        algorithm = keep_local(algorithm, batchnorm_weights(model, initial))
    wrappers: dict[str, Callable[[Algorithm], Algorithm]] = {
        "reset": lambda same: same,
        "keep": keep_optimizer,
        "average": average_optimizer,
    }
    return wrappers[config.local_optimizer_state](algorithm)


def build_trainer(config: DictConfig, callbacks: list[L.Callback]) -> L.Trainer:
    """Lightning's Trainer with every option of `trainer`."""
    options: dict[str, Any] = OmegaConf.to_container(config.trainer, resolve=True)  # type: ignore[assignment]
    options["devices"] = single_device(options["accelerator"], options["devices"])
    return L.Trainer(
        **options,
        strategy=config.strategy.trainer,
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=HydraConfig.get().runtime.output_dir,
        max_epochs=1,
    )


def build_plans(
    config: DictConfig, model: nn.Module, trainer: L.Trainer
) -> Callable[[int], RoundPlan]:
    """The plan of every round."""
    base = RoundPlan(
        round_idx=1,
        lr=config.optimizer.lr,
        batching=Batching(
            batch_size=config.batch_size,
            accumulate=config.trainer.accumulate_grad_batches,
            micro_batch=config.micro_batch,
            last_batch=config.last_batch,
            drop_single=any(True for _ in batchnorm_layers(model)),
        ),
        local_epochs=config.local_epochs,
        local_steps=config.local_steps,
        strategy=config.strategy.name,
        devices=str(trainer.strategy.root_device),
        precision=str(trainer.precision),
    )
    schedule = instantiate(config.lr_schedule)
    rates = learning_rates(lr=config.optimizer.lr, rounds=config.rounds, **schedule)
    make: Callable[..., Callable[[int], RoundPlan]] = instantiate(config.schedule)
    return partial(make, base=base, learning_rates=rates)()


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
