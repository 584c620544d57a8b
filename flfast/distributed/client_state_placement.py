"""Where client states live in a world: the state of client k on rank k mod size, for good."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import psutil

from flfast.distributed.world import World, gather
from flfast.state.store import ClientStates

MEMORY_SHARE = 1 / 3
"""Of the memory that is free at the start of a run, that states may take unless told otherwise.

A checkpoint copies them, and so does making room for more of them.
"""


def make_states(keep: Literal["auto", "ram", "disk"], folder: Path, world: World) -> ClientStates:
    """This rank's client states, in memory or in files.

    Args:
        keep: `auto` is memory until this rank's part of `MEMORY_SHARE` would be exceeded.
        folder: for the files of all ranks.
        world: the ranks of the run.
    """
    share = int(MEMORY_SHARE * psutil.virtual_memory().available) // world.local_size
    memory = {"auto": share, "ram": None, "disk": 0}[keep]
    return ClientStates(memory, folder / f"rank{world.rank}")


def owner(world: World, client_id: int) -> int:
    """The rank that keeps a client's state."""
    return client_id % world.size


def fetch_states(
    world: World, states: ClientStates, clients: Sequence[int], *, wanted: Sequence[int]
) -> None:
    """Bring the states of some clients to where they are wanted; collective.

    Args:
        world: the ranks of the run.
        states: this rank's.
        clients: who is away from home, the same on every rank.
        wanted: clients that this rank needs.
    """
    if world.size == 1 or not clients:
        return
    mine = {k for k in clients if owner(world, k) == world.rank}
    _exchange(world, states, given=mine, taken=set(wanted) - mine)


def return_states(
    world: World, states: ClientStates, clients: Sequence[int], *, trained: Sequence[int]
) -> None:
    """Give owners the states of some clients, and forget those of others; collective.

    Args:
        world: the ranks of the run.
        states: this rank's.
        clients: who was trained away from home, the same on every rank.
        trained: who was trained here.
    """
    if world.size == 1 or not clients:
        return
    mine = {k for k in clients if owner(world, k) == world.rank}
    _exchange(world, states, given=set(trained) & set(clients), taken=mine)
    for client_id in clients:
        if owner(world, client_id) != world.rank:
            states.drop(client_id)


def _exchange(world: World, states: ClientStates, *, given: set[int], taken: set[int]) -> None:
    """Show all ranks the states of `given`, and keep those that they show of `taken`."""
    for part in gather(world, {k: states.get(k) for k in sorted(given)}):
        for client_id, state in part.items():
            if state is not None and client_id in taken:
                states.put(client_id, state)
