"""From a checked config to a run."""

import logging
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf

from flfast.algorithms.algorithm import Algorithm
from flfast.checkpoints.folders import Checkpoint
from flfast.checkpoints.signals import StopRequests
from flfast.config.errors import ConfigError, OneRankError
from flfast.config.phases import Phase
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.sources.image_files import UnreadableImageError
from flfast.distributed.client_state_placement import make_states
from flfast.distributed.world import World, gather
from flfast.engines.base import fine_tuning
from flfast.engines.engine import Engine
from flfast.federation.loop import DivergedError, Federation
from flfast.lit.channels_last import use_channels_last
from flfast.lit.local_module import LocalModule
from flfast.setup.allocator import hand_back_freed_memory, keep_freed_memory
from flfast.setup.batch_size import Parts, find_sizes, least, with_sizes
from flfast.setup.build import (
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
from flfast.setup.resume import (
    changed_hardware,
    decided_before,
    find_origins,
    keep_checkpoints,
    loggers_of,
    resume,
    shared_run_dir,
    sizes_of,
    with_known_sizes,
)
from flfast.setup.robustness import build_channel, check_cohort, relabel_attackers
from flfast.state.optimizer_state import check_optimizer_state
from flfast.state.store import ClientStates

log = logging.getLogger(__name__)
T = TypeVar("T")


def run_experiment(phases: list[Phase], world: World, requests: StopRequests) -> float | None:
    """Build a federation from a checked config and run it, as one rank of a world.

    Returns:
        `optimized_metric` after the last round.

    Raises:
        ConfigError: if data, model or devices refuse the settings on any rank, or every client
            diverges.
        StoppedError: if a rank was told to stop.
    """
    federation = build(phases, world, requests)
    try:
        history = federation.run()
    except (DivergedError, MisconfigurationException) as error:
        raise ConfigError(str(error)) from error
    except UnreadableImageError as error:
        # A worker that reads puts its traceback before the message.
        raise OneRankError(str(error).strip().splitlines()[-1]) from error
    except ValueError as error:
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise OneRankError(
            "a batch of one example met BatchNorm, which has no variance to divide by; raise "
            "batch_size, micro_batch or partition.min_samples, or use model.norm=group"
        ) from error
    value = history[-1].get(phases[0].config.optimized_metric)
    return None if value is None else float(value)


def build(phases: list[Phase], world: World, requests: StopRequests) -> Federation:
    """Everything a run needs, where it is to go on; collective.

    Raises:
        ConfigError: if data, model or devices refuse the settings on any rank.
    """
    given, config = phases, phases[0].config
    folder = shared_run_dir(world)
    first = world.rank == 0
    origins = gather(world, on_all_ranks(world, lambda: first and find_origins(config, folder)))[0]
    origin = origins[0] if origins else None
    changes = changed_hardware(phases, origin, world)
    phases = with_known_sizes(phases, origin, changes)
    # Ranks of a node must not download into one folder at the same time.
    waits = world.local_rank > 0 and config.data.get("download", False)
    early = on_all_ranks(world, lambda: None if waits else build_parts(config))
    parts = on_all_ranks(world, lambda: early or build_parts(config))
    sizes = on_all_ranks(world, partial(find_sizes, phases, parts, world))
    phases = with_sizes(phases, least(gather(world, sizes)))
    decided = decided_before(origin, changes, world)
    make = partial(build_federation, phases, parts, world, origin, decided)
    federation = on_all_ranks(world, make)
    stand_for = sizes_of(given, phases)
    on_all_ranks(world, partial(keep_checkpoints, federation, config, stand_for, folder, requests))
    if origins:
        on_all_ranks(world, partial(resume, federation, origins))
    return federation


def on_all_ranks(world: World, work: Callable[[], T]) -> T:
    """What `work` returns on this rank, once it has succeeded on every rank; collective.

    Raises:
        ConfigError: on every rank, if the settings are refused on any of them.
    """
    result: T | None = None
    message: str | None = None
    failure: Exception | None = None
    try:
        result = work()
    except (ValueError, TypeError, OSError, MisconfigurationException, ConfigError) as error:
        message, failure = str(error), error
    except InstantiationException as error:
        message, failure = str(error.__cause__ or error), error
    except MemoryError as error:
        message, failure = f"data or model are larger than the memory: {error}", error
    except Exception as error:
        # Of the program, not of the settings; the others must not wait for this rank.
        gather(world, f"{type(error).__name__}: {error}")
        raise
    messages = gather(world, message)
    for rank, said in enumerate(messages):
        if said is not None:
            everywhere = len(set(messages)) == 1
            raise ConfigError(said if everywhere else f"rank {rank}: {said}") from failure
    return cast(T, result)


def build_parts(config: DictConfig) -> Parts:
    """What does not depend on the plan."""
    quiet_lightning()
    keep_freed_memory()
    torch.set_num_threads(config.threads)
    os.environ["OMP_NUM_THREADS"] = str(config.threads)  # or Lightning's ddp shares out all cores
    data = build_data(config)
    relabel_attackers(config, data)
    hand_back_freed_memory()
    model = build_model(config, data)
    use_channels_last(model)
    initial = initial_weights(config, model)
    algorithm = build_algorithm(config, initial, model)
    make_optimizer = instantiate(config.optimizer)
    if algorithm.optimizer is not None:
        check_optimizer_state(make_optimizer, lr=config.optimizer.lr)
    module = LocalModule(model, algorithm, make_optimizer, freeze_batchnorm=config.bn == "frozen")
    make_optimizer(module.parameters(), lr=config.optimizer.lr)  # its own checks, before training
    return Parts(data, module, initial)


def build_federation(
    phases: list[Phase],
    parts: Parts,
    world: World,
    origin: Checkpoint | None,
    decided: dict[str, Any],
) -> Federation:
    """A federation of the parts, with plans, loggers and callbacks.

    Args:
        phases: of the run.
        parts: of local training.
        world: the ranks of the run.
        origin: where it goes on, if it does.
        decided: what `auto` stood for there.
    """
    config = phases[0].config
    data, module = parts.data, parts.module
    check_sharding(phases, module.model, module.make_optimizer, world)
    callbacks = build_callbacks(config)
    make_trainer = partial(build_trainer, phases, callbacks, world)
    plans = build_plans(phases, module.model)
    nodes = instantiate(loggers_of(config, origin))
    loggers = [logger for logger in nodes.values() if logger]
    for logger in loggers:
        logger.log_hyperparams(OmegaConf.to_container(config, resolve=True))
    states = make_states(config.client_states, run_dir() / "client_states", world)
    make_engine = instantiate(config.engine)
    engine = make_engine(module, data, make_trainer, states, world)
    engine.decided = decided
    engine.channel = build_channel(config, data)
    if config.finetune_epochs:
        tuner = make_engine(fine_tuning(module), data, make_trainer, ClientStates(), world)
        tuner.decided = engine.decided.setdefault("finetuning", {})
        engine.evaluate_finetuned(tuner, config.finetune_epochs)
    check_metrics(config, engine)
    title = describe(config, module.algorithm, data)
    for phase in phases:
        plan = plans(phase.start, [])
        first = plan.phase == 0
        opening = title if first else f"from round {phase.start}"
        log.info("%s | engine %s, %s", opening, engine.choose(plan), plan.describe())
    federation = Federation(
        algorithm=module.algorithm,
        engine=engine,
        data=data,
        sampler=build_sampler(config),
        plans=plans,
        initial=parts.initial,
        rounds=1 if config.trainer.fast_dev_run else config.rounds,
        eval_every=config.eval_every,
        seed=config.seed,
        recalibrate=config.bn == "recalibrate",
        faults=engine.channel.faults,
        callbacks=callbacks,
        loggers=loggers,
        run_dir=run_dir(),
        title=title,
    )
    # A sampler that asks too much says so here, and an aggregation that does.
    check_cohort(engine.channel.aggregation, federation.cohort(1))
    return federation


def check_metrics(config: DictConfig, engine: Engine) -> None:
    """Make sure that what is asked for will be measured."""
    sets = engine.evaluation_sets
    view = config.optimized_metric.partition("/")[0]
    if view not in {"train", *sets}:
        raise ValueError(
            f"optimized_metric={config.optimized_metric} will not be measured: there is no such "
            f"model or no such data; allowed: {', '.join(sorted(sets))} metrics and train/loss"
        )
    holdout, epochs = config.sampler.get("holdout_clients", 0), config.finetune_epochs
    if epochs and sets.isdisjoint({"finetuned", "new_finetuned"}):
        raise ValueError(
            f"finetune_epochs={epochs}: no client has test data of its own; set split.test > 0"
        )
    if holdout and sets.isdisjoint({"new", "new_finetuned"}):
        raise ValueError(
            f"sampler.holdout_clients={holdout}: clients held out have no test data or no model "
            f"that is new to them; set split.test > 0 or finetune_epochs > 0"
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
