"""Starting the ranks of this machine with TorchElastic."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def on_ranks(
    size: int, fn: Callable[..., Any], *args: Any, max_restarts: int = 0
) -> dict[int, Any]:
    """Run `fn(*args)` on every rank of a new world; returns the results by rank.

    Args:
        size: number of ranks.
        fn: finds its world in torchrun's environment variables. It must be picklable, unless the
            ranks are forked.
        args: of `fn`.
        max_restarts: of the whole world, after a rank died.

    Raises:
        ChildFailedError: if ranks died more than `max_restarts` times.
        SignalException: on SIGHUP and SIGQUIT, after all ranks have ended.
    """
    # One message says which rank died and why; these loggers add some 50 lines of traceback.
    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options: dict[str, Any] = {}
    if "signals_to_handle" in {field.name for field in fields(LaunchConfig)}:
        options["signals_to_handle"] = "SIGHUP,SIGQUIT"  # the launcher handles the others
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id="flfast",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork" if can_fork() else "spawn",
        max_restarts=max_restarts,
        monitor_interval=0.1,
        **options,
    )
    results: dict[int, Any] = elastic_launch(settings, fn)(*args)
    return results


def can_fork() -> bool:
    """Whether ranks can be forked now; otherwise they are spawned.

    A forked rank starts in a fraction of a second; a spawned one imports everything again.
    """
    # Neither CUDA nor a thread pool survives a fork.
    safe = sys.platform == "linux" and not torch.cuda.is_initialized()
    return safe and torch.get_num_threads() == 1


def first_failure(error: ChildFailedError, size: int) -> str:
    """One line about the rank that died first."""
    rank, failure = error.get_first_failure()
    message = failure.message
    message = str(message["message"] if isinstance(message, dict) else message)
    if message.startswith("To enable traceback"):  # it died before it could write a message
        message = f"exit code {failure.exitcode}; what it said is above"
    return f"rank {rank} of {size} died: {message.splitlines()[-1]}"


def end_with_parent(parent: int, *, every_s: float = 0.2) -> None:
    """End this process soon after its parent has died, even if the parent was killed.

    Args:
        parent: process id of the parent.
        every_s: seconds between looks.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        os._exit(1)  # nobody is left to hear of an exception

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
