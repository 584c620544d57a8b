"""Builds Lightning's Trainer of a phase, on this rank's devices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim import Optimizer

from flfast.config.phases import Phase
from flfast.distributed.devices import num_devices, single_device
from flfast.distributed.sharding import check_shardable
from flfast.distributed.world import World, cluster_environment
from flfast.lit.strategies.dp import DataParallelStrategy
from flfast.lit.strategies.fsdp import FullyShardedStrategy
from flfast.setup.plans import choose_strategy
from flfast.state.plan import RoundPlan

PROFILERS = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}


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
    plugins = options.get("plugins") or []
    plugins = plugins if isinstance(plugins, list) else [plugins]
    options["plugins"] = [*plugins, cluster_environment(world)]
    strategy: str | Strategy = "auto"
    if plan.strategy == "dp" and num_devices(chosen) > 1:
        strategy, options["devices"] = DataParallelStrategy.strategy_name, chosen
    sharded = plan.strategy == "fsdp" and world.size > 1
    if sharded:
        strategy = FullyShardedStrategy(config.strategy.group_params)
        options["inference_mode"] = False  # parameters gathered in it could not be trained
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
