"""Builds the plans of rounds (strategy, precision, batches, rates), and Trainers for them."""

import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
from lightning.pytorch.strategies import Strategy
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.optim import Optimizer

from flfast.config.phases import Phase
from flfast.distributed.devices import choose_devices, num_devices, single_device
from flfast.distributed.sharding import check_shardable
from flfast.distributed.world import World, cluster_environment
from flfast.federation.learning_rate import learning_rates
from flfast.federation.schedules.adaptive import Plans, adaptive
from flfast.federation.schedules.piecewise import piecewise, scale_lr
from flfast.lit.batchnorm import batchnorm_layers
from flfast.lit.strategies.dp import DataParallelStrategy
from flfast.lit.strategies.fsdp import FullyShardedStrategy
from flfast.state.plan import Batching, RoundPlan, batch_limit

log = logging.getLogger(__name__)

PROFILERS = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}

_WITHOUT_FLOAT32 = {"bf16-true", "16-true", "64-true"}


def build_plans(phases: list[Phase], model: nn.Module) -> Plans:
    """The function that returns the plan of a round."""
    config = phases[0].config
    schedule = instantiate(config.lr_schedule)
    plans = [build_plan(number, phase.config, model) for number, phase in enumerate(phases)]
    rates = []
    for plan in plans:
        lr = scale_lr(
            plan.lr,
            rule=config.schedule.lr_scaling,
            batch_size=plan.batching.batch_size,
            base_batch_size=config.batch_size,
        )
        rates.append(learning_rates(lr=lr, rounds=config.rounds, **schedule))
    starts = [phase.start for phase in phases]
    by_phase = piecewise(list(zip(starts, plans, strict=True)), rates)
    adapt = config.schedule.adapt
    return adaptive(by_phase, **adapt) if adapt else by_phase


def build_plan(phase_idx: int, config: DictConfig, model: nn.Module) -> RoundPlan:
    """The plan of a phase's rounds; `round_idx` is a placeholder."""
    strategy, chosen = choose_strategy(config)
    if strategy == "single" and num_devices(chosen) > 1:
        if config.trainer.devices not in ("auto", -1):
            requested = num_devices(chosen)
            log.warning("strategy=single uses one of the %d devices asked for", requested)
        chosen = single_device(chosen, 0)
    precision = choose_precision(config)
    if precision != config.trainer.precision:
        asked = config.trainer.precision
        log.warning("trainer.precision=%s is computed as %s on a CPU", asked, precision)
    fp32_precision = config.trainer.get("fp32_precision")
    if fp32_precision and (isinstance(chosen, int) or precision in _WITHOUT_FLOAT32):
        where = f"with trainer.precision={precision}" if isinstance(chosen, list) else "on a CPU"
        log.warning("trainer.fp32_precision=%s has no effect %s", fp32_precision, where)
        fp32_precision = None
    has_batchnorm = any(True for _ in batchnorm_layers(model))
    if has_batchnorm and config.batch_size in {1, 2} and config.bn != "frozen":
        log.warning("batch_size=%d with BatchNorm: its statistics are noise", config.batch_size)
    return RoundPlan(
        round_idx=1,
        phase=phase_idx,
        lr=config.optimizer.lr,
        batching=Batching(
            batch_size=config.batch_size,
            accumulate=config.trainer.accumulate_grad_batches,
            micro_batch=config.micro_batch,
            last_batch=config.last_batch,
            limit=batch_limit(config.trainer.limit_train_batches),
            drop_single=has_batchnorm and config.bn != "frozen",
        ),
        local_epochs=config.local_epochs,
        local_steps=config.local_steps,
        strategy=strategy,
        shard=config.strategy.get("shard", "clients"),
        devices=f"cpu:{chosen}" if isinstance(chosen, int) else f"gpu:{chosen}",
        precision=precision,
        fp32_precision=fp32_precision,
    )


def choose_strategy(config: DictConfig) -> tuple[str, list[int] | int]:
    """The strategy's name and its devices, with `auto` resolved.

    Raises:
        ValueError: if this machine lacks a device that was asked for.
    """
    options: Any = OmegaConf.to_container(config.trainer, resolve=True)
    chosen = choose_devices(options["accelerator"], options["devices"])
    name = config.strategy.name
    if options["devices"] in ("auto", -1) and isinstance(chosen, int):
        whole_clients = name in {"auto", "ddp"} and config.strategy.shard == "clients"
        max_ranks = _max_cohort_size(config) if whole_clients else sys.maxsize
        chosen = max(1, min(chosen // config.threads, max_ranks))
    if name == "auto":
        name = "ddp" if num_devices(chosen) > 1 else "single"
    return name, chosen


def choose_precision(config: DictConfig) -> str:
    """The Trainer's precision: on a CPU Lightning computes `16-mixed` in bfloat16."""
    _, chosen = choose_strategy(config)
    accelerator, asked = config.trainer.accelerator, str(config.trainer.precision)
    is_cpu = accelerator == "cpu" or not torch.backends.mps.is_available()
    on_cpu = isinstance(chosen, int) and is_cpu
    return "bf16-mixed" if asked == "16-mixed" and on_cpu else asked


def _max_cohort_size(config: DictConfig) -> int:
    """Size of the largest cohort, or mean size with poisson: more ranks would be idle."""
    if config.mode == "centralized":
        return 1
    count, num_clients = config.sampler.get("count"), config.partition.get("num_clients")
    # Within owners, it is the number of parts of each client that only the data name.
    if count or not num_clients or config.partition.get("within_owners"):
        return count or sys.maxsize
    return math.ceil(num_clients * config.sampler.get("fraction", 1.0))


def build_trainer(
    phases: list[Phase], callbacks: list[L.Callback], folder: Path, world: World, plan: RoundPlan
) -> L.Trainer:
    """Lightning's Trainer with the phase's `trainer` options, on this rank's devices.

    By default each rank has a Trainer of its own. With `shard=batch` or `fsdp`, one Trainer spans
    all ranks. Lightning's own files go to `folder`.
    """
    config = phases[plan.phase].config
    options: dict[str, Any] = instantiate(config.trainer, _convert_="all")
    _, chosen = choose_strategy(config)
    options["devices"] = single_device(chosen, world.local_rank)
    options["precision"] = plan.precision
    options.pop("fp32_precision", None)  # which `Trainers` uses
    plugins = options.get("plugins") or []
    plugins = plugins if isinstance(plugins, list) else [plugins]
    options["plugins"] = [*plugins, cluster_environment(world)]
    strategy: str | Strategy = "auto"
    if plan.strategy == "dp" and num_devices(chosen) > 1:
        strategy, options["devices"] = DataParallelStrategy.strategy_name, chosen
    sharded = plan.strategy == "fsdp" and world.size > 1
    # What is gathered in inference mode, or is made there by a model, could not be trained.
    options.setdefault("inference_mode", False)
    if sharded:
        strategy = FullyShardedStrategy(config.strategy.group_params)
    elif plan.strategy == "ddp" and plan.shard == "batch" and world.size > 1:
        strategy = "ddp"
    if sharded or strategy == "ddp":
        options["devices"] = world.local_size if isinstance(chosen, int) else chosen
        options["num_nodes"] = world.size // world.local_size
    if options["profiler"] in PROFILERS:
        profiler = PROFILERS[options["profiler"]]
        options["profiler"] = profiler(dirpath=folder, filename=f"profile-{plan.strategy}")
    return L.Trainer(
        **options,
        strategy=strategy,
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        max_epochs=1,
    )


def check_sharding(
    phases: list[Phase], model: nn.Module, make_optimizer: Callable[..., Optimizer], world: World
) -> None:
    """Try strategy=fsdp on this rank's device, if a phase uses it.

    Raises:
        ValueError: if FSDP cannot shard this model, or the optimizer cannot train it sharded.
    """
    for phase in phases:
        strategy, chosen = choose_strategy(phase.config)
        if strategy == "fsdp" and world.size > 1:
            gpu = single_device(chosen, world.local_rank)
            device = torch.device("cuda", gpu[0]) if isinstance(gpu, list) else torch.device("cpu")
            check_shardable(model, make_optimizer, lr=phase.config.optimizer.lr, device=device)
            return
