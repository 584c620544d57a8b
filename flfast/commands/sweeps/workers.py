"""How many jobs of a packed sweep run at a time, and on which devices. Torch-free at import."""

import os
from collections.abc import Sequence

from omegaconf import DictConfig

from flfast.config.errors import ConfigError
from flfast.state.machine import num_cores

Slot = dict[str, str]
"""Room for one job at a time: the environment variables of jobs that run there."""


def launcher_overrides(config: DictConfig) -> list[str]:
    """Overrides that the launcher of a sweep adds to a job's own.

    Jobs of our launchers run side by side, so that none may start a rank on every core.
    """
    ours = config.hydra.launcher["_target_"].endswith((".PackedLauncher", ".RayLauncher"))
    return ["trainer.devices=1"] if ours and config.trainer.devices in ("auto", -1) else []


def slots(workers: int | str, configs: Sequence[DictConfig]) -> list[Slot]:
    """Room for as many jobs as run at a time; jobs on GPUs get them in turn.

    Args:
        workers: number of jobs at a time; `auto`: one per GPU, or as many as there are cores for.
        configs: the jobs' configs, after `launcher_overrides`.

    Raises:
        ConfigError: if `workers` is neither `auto` nor a number >= 1.
    """
    if workers != "auto" and (not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"hydra.launcher.workers={workers}; allowed: auto, or a number >= 1")
    one_device = all(config.trainer.devices == 1 for config in configs)
    on_cpu = all(config.trainer.accelerator == "cpu" for config in configs)
    gpus = [] if on_cpu or not one_device else visible_gpus()
    if gpus:
        num = len(gpus) if workers == "auto" else int(workers)
        return [{"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} for i in range(num)]
    if workers != "auto":
        return [{}] * int(workers)
    cores = max((cores_of(config) for config in configs), default=1)
    return [{}] * max(1, num_cores() // cores)


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, for `CUDA_VISIBLE_DEVICES`."""
    import torch

    num = torch.cuda.device_count()  # CUDA ignores all names from the first wrong one on
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:num] if named else [str(index) for index in range(num)]


def cores_of(config: DictConfig) -> int:
    """Cores that a job on the CPU keeps busy."""
    devices = config.trainer.devices
    ranks = len(devices) if isinstance(devices, Sequence) else int(devices)
    return ranks * int(config.threads)
