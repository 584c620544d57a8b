"""`batch_size=auto` and `micro_batch=auto`: from config nodes to numbers, once, before round 1."""

import logging
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from flfast.config.phases import Phase
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.devices import num_devices
from flfast.distributed.world import World
from flfast.lit.local_module import LocalModule
from flfast.plan import Batching, RoundPlan
from flfast.setup.build import build_trainer, choose_strategy
from flfast.setup.memory_search import num_fitting
from flfast.setup.memory_trial import Trial
from flfast.state.tree import Tree

log = logging.getLogger(__name__)

KEYS = ("batch_size", "micro_batch")


class Size(NamedTuple):
    """What an `auto` stands for.

    Attributes:
        fitting: examples that fit.
        limit: examples that could be of use: the largest client's, or a whole batch.
    """

    fitting: int
    limit: int


class Parts(NamedTuple):
    """What a local step is made of.

    Attributes:
        data: the population.
        module: model, algorithm and optimizer.
        initial: weights before round 1.
    """

    data: FederatedDataModule
    module: LocalModule
    initial: Tree


def find_sizes(phases: list[Phase], parts: Parts, world: World) -> dict[str, Size]:
    """What fits on this rank's device in every phase that says `auto`, by key; not collective.

    Raises:
        ValueError: if not even one example fits.
    """
    sizes: dict[str, Size] = {}
    for phase in phases:
        for key in KEYS:
            if phase.config[key] != "auto":
                continue
            trial = _trial(key, phase, parts, world)
            limit = int(parts.data.train_clients.sizes().max())
            if key == "micro_batch" and phase.config.batch_size > 0:
                limit = min(limit, phase.config.batch_size)
            fitting = num_fitting(
                trial,
                limit,
                parts=_num_parts(phase, world),
                budget=None,
                ranks=world.local_size,
            )
            if not fitting:
                raise ValueError(
                    f"{key}=auto: the local step of a single example does not fit in memory; "
                    f"allowed: a smaller model, another device, trainer.precision=bf16-mixed"
                )
            sizes[key] = min(Size(fitting, limit), sizes.get(key, Size(fitting, limit)))
    return sizes


def _trial(key: str, phase: Phase, parts: Parts, world: World) -> Trial:
    # A trial is neither profiled nor validated nor limited, and nobody's callbacks see it.
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
        precision=config.trainer.precision,
    )
    return Trial(
        parts.module,
        parts.initial,
        parts.data,
        partial(build_trainer, [Phase(1, config)], [], world),
        plan,
        accumulates=key == "micro_batch" or config.trainer.accumulate_grad_batches > 1,
    )


def _num_parts(phase: Phase, world: World) -> int:
    """Devices that a batch is divided over."""
    strategy, devices = choose_strategy(phase.config)
    if strategy == "dp":
        return num_devices(devices)
    together = strategy == "ddp" and phase.config.strategy.shard == "batch"
    return world.size if together else 1


def least(sizes: Sequence[dict[str, Size]]) -> dict[str, Size]:
    """What fits on every rank.

    Args:
        sizes: of each rank, the same keys.
    """
    return {key: min(size[key] for size in sizes) for key in sizes[0]}


def with_sizes(phases: list[Phase], sizes: dict[str, Size]) -> list[Phase]:
    """The phases with numbers in place of `auto`, said in a line each."""
    for key, (fitting, limit) in sizes.items():
        if fitting < limit:
            why = "more examples do not fit in memory"
        elif key == "batch_size":
            why = "all of the largest client's examples; a larger batch would change nothing"
        else:
            why = "a whole batch fits"
        log.info("%s=auto is %d: %s", key, fitting, why)
    return [Phase(phase.start, _filled(phase, sizes)) for phase in phases]


def _filled(phase: Phase, sizes: dict[str, Size]) -> DictConfig:
    config = deepcopy(phase.config)
    for key, size in sizes.items():
        if config[key] == "auto":
            config[key] = size.fitting
    return config
