"""A world that torchrun or SLURM started decides how many ranks there are; the config follows."""

import logging
from copy import deepcopy

import torch
from omegaconf import DictConfig, ListConfig

from flfast.config.phases import Phase
from flfast.distributed.world import World

log = logging.getLogger(__name__)


def fit_to_world(phases: list[Phase], world: World, *, even: bool) -> list[Phase]:
    """The phases for the ranks that there are.

    For `ddp` and `auto`, `trainer.devices` of auto (the default) and -1 leave the number of ranks
    to the launcher; any other number must be that of this node's ranks. `strategy=auto` is `ddp`.

    Args:
        phases: of the run.
        world: started from outside.
        even: whether every node has the same number of ranks.

    Raises:
        ValueError: if a phase asks for other ranks than there are.
    """
    fitted = [Phase(phase.start, _fitted(phase.config, world, even=even)) for phase in phases]
    if world.size > 1 and all(
        phase.config.strategy.name not in {"ddp", "fsdp"} for phase in fitted
    ):
        log.warning(
            "strategy=%s trains on one of the %d ranks that were started; strategy=ddp uses all",
            fitted[0].config.strategy.name,
            world.size,
        )
    return fitted


def _fitted(config: DictConfig, world: World, *, even: bool) -> DictConfig:
    if config.strategy.name not in {"auto", "ddp", "fsdp"}:
        return config
    config = deepcopy(config)
    if world.size > 1 and config.strategy.name == "auto":
        config.strategy.name = "ddp"
    devices, started = config.trainer.devices, f"{world.local_size} rank(s) on this node"
    asked = len(devices) if isinstance(devices, ListConfig) else devices
    if devices not in (-1, "auto") and asked != world.local_size:
        raise ValueError(
            f"trainer.devices={devices} with strategy={config.strategy.name}: torchrun or SLURM "
            f"started {started}; "
            f"allowed: {world.local_size}, or auto"
        )
    if not isinstance(devices, ListConfig):
        config.trainer.devices = _num_devices(config, world)
    if _together(config) and not even:
        raise ValueError(
            f"strategy.shard=batch: torchrun or SLURM started {started} and another number on "
            f"others; allowed: the same number on every node, or strategy.shard=clients"
        )
    return config


def _together(config: DictConfig) -> bool:
    return config.strategy.name == "fsdp" or config.strategy.shard == "batch"


def _num_devices(config: DictConfig, world: World) -> int:
    """What `trainer.devices` must be for every rank to find a device of its own."""
    gpus = 0 if config.trainer.accelerator == "cpu" else torch.cuda.device_count()
    if gpus == 0 or gpus >= world.local_size:
        return world.local_size
    if gpus > 1:
        raise ValueError(
            f"trainer.accelerator={config.trainer.accelerator}: torchrun or SLURM started "
            f"{world.local_size} ranks on this node, where there are {gpus} GPUs; allowed: a rank "
            f"a GPU at most, or trainer.accelerator=cpu"
        )
    # SLURM's --gpus-per-task shows every rank its own GPU only.
    if _together(config):
        raise ValueError(
            "strategy.shard=batch: every rank sees one GPU, but Lightning counts a node's GPUs; "
            "allowed: start ranks that see all GPUs of their node, or strategy.shard=clients"
        )
    return 1
