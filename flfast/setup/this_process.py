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
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
    # Local training validates only where asked.
    warnings.filterwarnings("ignore", message="You defined a `validation_step` but have no")
    # Ranks have different clients, of which some have no validation examples.
    warnings.filterwarnings("ignore", message="It is recommended to use `self.log")
    warnings.filterwarnings("ignore", message="Total length of `UserLoader`")
    # Ranks need no srun: this is said wherever SLURM is installed.
    warnings.filterwarnings("ignore", message="The `srun` command is available")
