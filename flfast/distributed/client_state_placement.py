"""Placement of client states: rank k mod size always keeps the state of client k."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from flfast.distributed.world import World, gather
from flfast.state.machine import free_memory
from flfast.state.store import ClientStates

MEMORY_SHARE = 1 / 3
"""Share of the free memory that client states may take by default.

Checkpoints copy them, and so does growing their tables.
"""


def make_states(keep: Literal["auto", "ram", "disk"], folder: Path, world: World) -> ClientStates:
    """This rank's client states, in memory or in a subfolder of its own.

    `auto` uses memory until they exceed this rank's part of `MEMORY_SHARE`.
    """
    share = int(MEMORY_SHARE * free_memory()) // world.local_size
    memory = {"auto": share, "ram": None, "disk": 0}[keep]
    return ClientStates(memory, folder / f"rank{world.rank}")


def owner(world: World, client_id: int) -> int:
    """The rank that keeps a client's state."""
    return client_id % world.size


def fetch_states(
    world: World, states: ClientStates, clients: Sequence[int], *, wanted: Sequence[int]
) -> None:
    """Copy states from their owners to the ranks that need them; collective.

    All ranks name the same `clients`, and each the ones `wanted` on it.
    """
    owned = _owned(world, clients)
    _exchange(world, states, clients, sent=owned, received=set(wanted) - owned)


def return_states(
    world: World, states: ClientStates, clients: Sequence[int], *, trained: Sequence[int]
) -> None:
    """Return states to their owners, and drop the copies on other ranks; collective.

    All ranks name the same `clients`, and each the ones that it has `trained`.
    """
    owned = _owned(world, clients)
    _exchange(world, states, clients, sent=set(trained) & set(clients), received=owned)
    for client_id in set(clients) - owned:
        states.drop(client_id)


def _owned(world: World, clients: Sequence[int]) -> set[int]:
    """The clients whose states this rank keeps."""
    return {client_id for client_id in clients if owner(world, client_id) == world.rank}


def _exchange(
    world: World,
    states: ClientStates,
    clients: Sequence[int],
    *,
    sent: set[int],
    received: set[int],
) -> None:
    """All-gather the states of clients in `sent`; store the states of clients in `received`."""
    if world.size == 1 or not clients:
        return
    for part in gather(world, {k: states.get(k) for k in sorted(sent)}):
        for client_id, state in part.items():
            if state is not None and client_id in received:
                states.put(client_id, state)
