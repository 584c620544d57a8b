"""What a run sets in its process: threads, memory, and what Lightning says."""

import logging
import os
import warnings

import torch
from omegaconf import DictConfig

from flfast.state.machine import keep_freed_memory


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
