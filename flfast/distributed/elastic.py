"""Ranks of this machine, started by TorchElastic."""

import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def on_ranks(
    size: int, work: Callable[..., Any], *args: Any, max_restarts: int = 0
) -> dict[int, Any]:
    """What `work(*args)` returns on every rank of a new world, by rank.

    Ranks are forked where neither CUDA nor threads of torch forbid it; `work` may be any then.

    Args:
        size: number of ranks.
        work: finds its world in torchrun's variables.
        args: of `work`.
        max_restarts: of the whole world, after a rank that died.

    Raises:
        ChildFailedError: if ranks die too often.
        SignalException: on SIGHUP and SIGQUIT, after which no rank is left.
    """
    # A forked rank starts in a fraction of a second, a spawned one imports everything anew; but
    # neither CUDA nor a pool of threads survives a fork.
    safe = sys.platform == "linux" and not torch.cuda.is_initialized()
    forkable = safe and torch.get_num_threads() == 1
    options: dict[str, Any] = {}
    if "signals_to_handle" in {field.name for field in fields(LaunchConfig)}:
        options["signals_to_handle"] = "SIGHUP,SIGQUIT"  # others are for who starts the ranks
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id="flfast",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork" if forkable else "spawn",
        max_restarts=max_restarts,
        monitor_interval=0.1,
        **options,
    )
    results: dict[int, Any] = elastic_launch(settings, work)(*args)
    return results


def cause_of_death(error: ChildFailedError, size: int) -> str:
    """Which of the ranks died first, and of what, in a line."""
    rank, failure = error.get_first_failure()
    message = failure.message
    message = str(message["message"] if isinstance(message, dict) else message)
    return f"rank {rank} of {size} died: {message.splitlines()[-1]}"
