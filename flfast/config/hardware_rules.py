"""Rules about devices, processes and strategies. Torch-free."""

import multiprocessing
import os
import sys
from pathlib import Path

from flfast.config.rule import Config, Rule, shown

_MAX_PER_CORE = 64
"""Most threads or processes per core: far more than can be useful, but harmless to start."""


def _daemonic(config: Config) -> str | None:
    workers = config["loader"]["num_workers"]
    return cannot_start(f"loader.num_workers={workers}", allowed="0") if workers else None


def cannot_start(setting: str, *, allowed: str) -> str | None:
    """Why a setting that starts processes is refused in this process; None if it can start them.

    Args:
        setting: key and value.
        allowed: value that starts none.
    """
    if not multiprocessing.process.current_process().daemon:
        return None
    return (
        f"{setting} in a daemonic process, such as one of multiprocessing.Pool, which cannot "
        f"start processes; allowed: {allowed}, or concurrent.futures.ProcessPoolExecutor"
    )


def _devices(config: Config) -> str | None:
    devices = config["trainer"]["devices"]
    accelerator = config["trainer"]["accelerator"]
    if not devices or (isinstance(devices, int) and devices < -1):
        return f"trainer.devices={devices}: must be a count >= 1, -1, auto, or a list of indices"
    wants_gpu = accelerator in {"gpu", "cuda"} or isinstance(devices, list)
    if accelerator == "cpu" and isinstance(devices, list):
        return f"trainer.devices={devices} with trainer.accelerator=cpu: must be a count"
    if wants_gpu and not _may_have_gpu():
        return (
            f"trainer.accelerator={accelerator} trainer.devices={devices}: there is no GPU here; "
            f"allowed: trainer.accelerator=cpu with a count of devices"
        )
    return None


def _num_processes(config: Config) -> str | None:
    most = _MAX_PER_CORE * (os.cpu_count() or 1)
    requested = {
        "threads": config["threads"],
        "loader.num_workers": config["loader"]["num_workers"],
        "trainer.devices": config["trainer"]["devices"],
    }
    for key, value in requested.items():
        if isinstance(value, int) and value > most:
            return f"{key}={value}: allowed: up to {most}, {_MAX_PER_CORE} per core"
    return None


def _sync_batchnorm(config: Config) -> str | None:
    if not config["trainer"].get("sync_batchnorm"):
        return None
    strategy = config["strategy"]
    shards_batches = strategy["name"] in {"auto", "ddp"} and strategy.get("shard") == "batch"
    if not shards_batches or config["trainer"]["accelerator"] == "cpu" or not _may_have_gpu():
        return "trainer.sync_batchnorm=True needs strategy=ddp strategy.shard=batch on GPUs"
    return None


def _fsdp(config: Config) -> str | None:
    strategy, trainer = config["strategy"], config["trainer"]
    has_group_params = strategy.get("group_params") is not None
    if (strategy["name"] == "fsdp") != has_group_params:
        return (
            f"strategy.name={strategy['name']} strategy.group_params="
            f"{shown(strategy.get('group_params'))}: fsdp needs this option and no other strategy "
            f"has it; set strategy=fsdp, which sets both"
        )
    if not has_group_params:
        return None
    if "shard" in strategy:
        return f"strategy.shard={strategy['shard']} with strategy=fsdp: only ddp has this option"
    if trainer.get("inference_mode"):
        return (
            "trainer.inference_mode=True with strategy=fsdp: parameters gathered in inference "
            "mode cannot be trained; use false"
        )
    if trainer["accelerator"] in {"mps", "tpu"}:
        return (
            f"trainer.accelerator={trainer['accelerator']} with strategy=fsdp: must be cpu or gpu"
        )
    return None


def _may_have_gpu() -> bool:
    """False only if it is certain, without importing torch, that torch will find no GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return False
    nodes = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/proc/driver/nvidia/version")
    return sys.platform != "linux" or any(Path(node).exists() for node in nodes)


HARDWARE_RULES: tuple[Rule, ...] = (
    _daemonic,
    _devices,
    _num_processes,
    _sync_batchnorm,
    _fsdp,
)
