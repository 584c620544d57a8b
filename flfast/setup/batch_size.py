"""Resolves `batch_size=auto` and `micro_batch=auto` once, before round 1."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from flfast.config.phases import AUTO_SIZES, Phase, replace_auto
from flfast.distributed.devices import num_devices
from flfast.distributed.world import World
from flfast.setup.learner import Learner
from flfast.setup.memory_search import MemoryProbe, num_fitting
from flfast.setup.plans import build_trainer, choose_precision, choose_strategy
from flfast.state.plan import Batching, RoundPlan

log = logging.getLogger(__name__)


def find_sizes(
    phases: list[Phase], folder: Path, learner: Learner, world: World
) -> dict[str, int]:
    """Sizes that fit on this rank's device in every phase that sets `auto`, by key.

    Not collective: ranks measure independently.

    Raises:
        ValueError: if the local step of a single example does not fit.
    """
    sizes: dict[str, int] = {}
    for phase in phases:
        for key in AUTO_SIZES:
            if phase.config[key] != "auto":
                continue
            probe = _build_probe(key, phase, folder, learner, world)
            limit = int(learner.data.client_sizes.max())
            if key == "micro_batch" and phase.config.batch_size > 0:
                limit = min(limit, phase.config.batch_size)
            num = _devices_per_batch(phase, world)
            fitting = num_fitting(
                probe, limit, devices_per_batch=num, budget=None, ranks=world.local_size
            )
            if not fitting:
                raise ValueError(
                    f"{key}=auto: the local step of a single example does not fit in memory; "
                    f"allowed: a smaller model, another device, trainer.precision=bf16-mixed"
                )
            sizes[key] = min(fitting, sizes.get(key, fitting))
    return sizes


def _build_probe(
    key: str, phase: Phase, folder: Path, learner: Learner, world: World
) -> MemoryProbe:
    # The user's callbacks, profiler and validation must not see these steps.
    quiet = {"trainer": {"profiler": None, "limit_val_batches": 0, "fast_dev_run": False}}
    config: Any = OmegaConf.merge(phase.config, quiet)
    plan = RoundPlan(
        round_idx=1,
        phase=0,
        lr=config.optimizer.lr,
        batching=Batching(1),
        local_epochs=1,
        local_steps=None,
        strategy="single",
        shard="clients",
        devices="",
        precision=choose_precision(config),
    )
    return MemoryProbe(
        learner.module,
        learner.initial,
        learner.data,
        partial(build_trainer, [Phase(1, config)], [], folder, world),
        plan,
        accumulates=key == "micro_batch" or config.trainer.accumulate_grad_batches > 1,
    )


def _devices_per_batch(phase: Phase, world: World) -> int:
    strategy, devices = choose_strategy(phase.config)
    if strategy == "dp":
        return num_devices(devices)
    shards_batches = strategy == "ddp" and phase.config.strategy.shard == "batch"
    return world.size if shards_batches else 1


def use_sizes(phases: list[Phase], rank_sizes: Sequence[dict[str, int]]) -> list[Phase]:
    """Phases with sizes that fit on every rank in place of `auto`; logs one line per size."""
    sizes = {key: min(sizes[key] for sizes in rank_sizes) for key in rank_sizes[0]}
    for key, size in sizes.items():
        log.info("%s=auto is %d", key, size)
    return replace_auto(phases, sizes)
