"""How the ranks of a launched world find each other."""

import datetime
import json
import os
import socket
import stat
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import torch.distributed as dist

from flfast.distributed.world import open_pipes
from flfast.state.environment import integer

RENDEZVOUS = "FLFAST_RENDEZVOUS"
"""Environment variable with the path of the file in which the ranks of our launcher meet."""

SILENCE_S = 20
"""A rank whose machine says nothing for so long is lost."""


def enter(backend: str, *, timeout_s: float) -> None:
    """Initialise the launched world's process group; `timeout_s` limits waiting; collective."""
    limit = datetime.timedelta(seconds=timeout_s)
    rank, size = integer("RANK", 0), integer("WORLD_SIZE", 1)
    if RENDEZVOUS in os.environ:
        # No URL: torch would look for `%20` where the folder's name has a blank, and wait there.
        store: dist.Store = dist.FileStore(os.environ[RENDEZVOUS], size)
        store.set_timeout(limit)
    else:
        store, rank, size = next(dist.rendezvous("env://", rank, size, timeout=limit))
    store = _of_this_group(store, rank, size, limit)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    _notice_lost_machines()
    open_pipes(rank, size, timeout_s)


def _of_this_group(store: dist.Store, rank: int, size: int, limit: datetime.timedelta) -> Any:
    """The part of a store that belongs to the ranks that now enter it.

    A store still holds the addresses of dead ranks after a restart, and those of the group before
    where a world is entered again. How often the ranks were started does not tell them apart:
    torchrun counts on each node for itself. So rank 0 takes the next number, and a rank is in its
    group once rank 0 has read what the rank wrote there.
    """
    if rank == 0:
        number = str(store.add("groups", 1))
        group = dist.PrefixStore(f"group-{number}", store)
        store.set("group", number)
        others = [f"rank-{other}" for other in range(1, size)]
        group.wait(others, limit)
        group.set("members", json.dumps([group.get(other).decode() for other in others]))
        return group
    own, last = uuid.uuid4().hex, ""
    end = time.monotonic() + limit.total_seconds()
    while time.monotonic() < end:
        number = store.get("group").decode()
        group = dist.PrefixStore(f"group-{number}", store)
        if number != last:
            group.set(f"rank-{rank}", own)
            last = number
        if group.check(["members"]) and own in json.loads(group.get("members")):
            return group
        time.sleep(0.02)
    raise RuntimeError(f"rank {rank} of {size}: rank 0 did not join within {limit}")


def _notice_lost_machines() -> None:
    """Let the kernel end connections to machines that are switched off, or cut off.

    Such a machine does not close its connections, and gloo would wait for `timeout_s`. A rank that
    only computes for long is not concerned: its kernel answers.
    """
    if sys.platform != "linux":
        return
    options = {
        socket.TCP_KEEPIDLE: SILENCE_S // 4,
        socket.TCP_KEEPINTVL: SILENCE_S // 4,
        socket.TCP_USER_TIMEOUT: SILENCE_S * 1000,
    }
    for file in Path("/dev/fd").iterdir():
        try:
            if not stat.S_ISSOCK(file.stat().st_mode):
                continue
            with socket.socket(fileno=os.dup(int(file.name))) as peer:
                if peer.family in {socket.AF_INET, socket.AF_INET6}:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    for option, value in options.items():
                        peer.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:  # closed by now, or no stream
            continue
