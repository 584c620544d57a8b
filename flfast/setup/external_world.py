"""What surrounds the run: its process, ranks that were started, threads, nodes and their disks."""

import logging
import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from omegaconf import DictConfig, ListConfig

from flfast.checkpoints.restore import fingerprint
from flfast.config.errors import ConfigError
from flfast.config.phases import Phase
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.world import World, gather
from flfast.setup.all_ranks import on_all_ranks
from flfast.setup.plans import choose_strategy
from flfast.state.machine import keep_freed_memory

log = logging.getLogger(__name__)


def prepare_process(config: DictConfig) -> None:
    """Let this process run a config."""
    quiet_lightning()
    keep_freed_memory()
    torch.set_num_threads(config.threads)
    # Without this variable, Lightning's ddp divides all cores among its ranks.
    os.environ["OMP_NUM_THREADS"] = str(config.threads)


def quiet_lightning() -> None:
    """Silence Lightning's log lines about devices and finished fits: there is a fit per client."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*LeafSpec.*",  # Lightning's own use of torch
        "You defined a `validation_step` but have no",  # local training validates where asked
        "It is recommended to use `self.log",  # ranks have different clients, of which some
        "Total length of `UserLoader`",  # have no validation examples
        "The `srun` command is available",  # which ranks do not need, wherever SLURM is installed
    ):
        warnings.filterwarnings("ignore", message=message)


def fit_to_threads(phases: list[Phase], threads: Sequence[str]) -> list[Phase]:
    """Phases for one process on the CPU, if other threads run here and the ranks are left to us.

    Ranks are not forked beside other threads (`distributed/launcher.py`). New interpreters import
    for longer than many runs of a notebook take, and cannot import what a notebook defines.
    """
    if not threads or not any(_ranks_are_ours(phase.config) for phase in phases):
        return phases
    log.info(
        "one process: threads run beside this one (%s), so that ranks would not be forked but "
        "import everything; trainer.devices=N starts N of them",
        ", ".join(threads),
    )
    fitted = deepcopy(phases)
    for phase in fitted:
        if _ranks_are_ours(phase.config):
            phase.config.trainer.devices = 1
    return fitted


def _ranks_are_ours(config: DictConfig) -> bool:
    if config.strategy.name != "auto" or config.trainer.devices != "auto":
        return False
    name, devices = choose_strategy(config)
    return name == "ddp" and isinstance(devices, int)


def check_folder_is_shared(world: World, folder: Path) -> None:
    """Refuse a run folder that some nodes do not see, since all ranks write there; collective.

    Raises:
        ConfigError: on every rank, naming those that look into another folder.
    """
    if world.size == world.local_size:
        return
    with ExitStack() as stack:

        def leave() -> str | None:
            if world.rank:
                return None
            folder.mkdir(parents=True, exist_ok=True)
            return stack.enter_context(NamedTemporaryFile(prefix=".nodes-", dir=folder)).name

        name = gather(world, on_all_ranks(world, leave))[0]
        found = gather(world, Path(name).exists())
    if not all(found):
        others = [rank for rank, seen in enumerate(found) if not seen]
        raise ConfigError(
            f"hydra.run.dir={folder}: ranks {others} are on a node that has another folder of "
            f"this name; allowed: a folder on a disk that all nodes share"
        )


def check_data_are_equal(world: World, data: FederatedDataModule) -> None:
    """Refuse nodes whose files hold other data; collective.

    Raises:
        ConfigError: on every rank, naming the ranks whose data differ from those of rank 0.
    """
    if world.size == world.local_size:
        return
    own = fingerprint(data) if world.local_rank == 0 else None
    found = gather(world, own)
    others = [rank for rank, seen in enumerate(found) if seen not in {None, found[0]}]
    if others:
        raise ConfigError(
            f"data: clients, labels or inputs of ranks {others} differ from those of rank 0, on "
            f"another node; allowed: the same files on every node"
        )


def fit_to_world(phases: list[Phase], world: World, *, equal_nodes: bool) -> list[Phase]:
    """Phases whose strategy and devices match the world's ranks.

    `strategy=auto` becomes `ddp`. With `ddp` and `fsdp`, `trainer.devices` of auto (the default)
    or -1 becomes the number of this node's ranks. Any other value must equal that number.

    Raises:
        ValueError: if a phase asks for another number of ranks.
    """
    fitted = [
        Phase(phase.start, _fit_config(phase.config, world, equal_nodes=equal_nodes))
        for phase in phases
    ]
    if world.size > 1 and all(
        phase.config.strategy.name not in {"ddp", "fsdp"} for phase in fitted
    ):
        log.warning(
            "strategy=%s trains on one of the %d ranks that were started; strategy=ddp uses all",
            fitted[0].config.strategy.name,
            world.size,
        )
    return fitted


def _fit_config(config: DictConfig, world: World, *, equal_nodes: bool) -> DictConfig:
    if config.strategy.name not in {"auto", "ddp", "fsdp"}:
        return config
    config = deepcopy(config)
    if world.size > 1 and config.strategy.name == "auto":
        config.strategy.name = "ddp"
    devices, started = config.trainer.devices, f"{world.local_size} rank(s) on this node"
    requested = len(devices) if isinstance(devices, ListConfig) else devices
    if devices not in (-1, "auto") and requested != world.local_size:
        raise ValueError(
            f"trainer.devices={devices} with strategy={config.strategy.name}: torchrun or SLURM "
            f"started {started}; allowed: {world.local_size}, or auto"
        )
    if not isinstance(devices, ListConfig):
        config.trainer.devices = _num_devices(config, world)
    if _shards_batches(config) and not equal_nodes:
        raise ValueError(
            f"strategy.shard=batch: torchrun or SLURM started {started} and another number on "
            f"others; allowed: the same number on every node, or strategy.shard=clients"
        )
    return config


def _shards_batches(config: DictConfig) -> bool:
    return config.strategy.name == "fsdp" or config.strategy.shard == "batch"


def _num_devices(config: DictConfig, world: World) -> int:
    """The value of `trainer.devices` that gives every rank a device of its own."""
    gpus = 0 if config.trainer.accelerator == "cpu" else torch.cuda.device_count()
    if gpus == 0 or gpus >= world.local_size:
        return world.local_size
    if gpus > 1:
        raise ValueError(
            f"trainer.accelerator={config.trainer.accelerator}: torchrun or SLURM started "
            f"{world.local_size} ranks on this node, which has {gpus} GPUs; allowed: at most one "
            f"rank per GPU, or trainer.accelerator=cpu"
        )
    # SLURM's --gpus-per-task shows every rank its own GPU only.
    if _shards_batches(config):
        raise ValueError(
            "strategy.shard=batch: every rank sees one GPU, but Lightning counts a node's GPUs; "
            "allowed: start ranks that see all GPUs of their node, or strategy.shard=clients"
        )
    return 1
