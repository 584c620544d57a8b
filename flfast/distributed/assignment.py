"""Which rank trains a client of a cohort, and which keeps its state.

Clients are scheduled for the smallest makespan. Rank k mod size always keeps client k's state.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Literal, NamedTuple

from flfast.distributed.world import World, gather
from flfast.state.machine import free_memory
from flfast.state.store import ClientStates

TOLERATED_LOAD = 1.05
"""Clients stay on their home ranks if the makespan grows by at most this factor."""

MEMORY_SHARE = 1 / 3
"""Share of the free memory that client states may take by default.

Checkpoints copy them, and so does growing their tables.
"""


class Assignment(NamedTuple):
    """The clients of a cohort that this rank trains.

    Attributes:
        here: clients that this rank trains.
        moved: clients of the whole cohort that train elsewhere than on their owner rank.
    """

    here: list[int]
    moved: list[int]


def assign_to_all(cohort: Sequence[int]) -> Assignment:
    """Every rank trains every client, on its part of every batch."""
    return Assignment(list(cohort), list(cohort))


def assign_to_first(cohort: Sequence[int], world: World) -> Assignment:
    """Rank 0 trains all clients."""
    moved = [client_id for client_id in cohort if owner(world, client_id)]
    return Assignment([] if world.rank else list(cohort), moved)


def assign_cohort(
    cohort: Sequence[int], costs: Sequence[int], world: World, *, stateful: bool
) -> Assignment:
    """Distribute whole clients over the ranks, for the smallest makespan.

    Clients are moved from their homes only if that pays, if they have states (`stateful`).
    """
    owners = [owner(world, client_id) for client_id in cohort]
    ranks = assign_clients(costs, world.size, owners if stateful else None)
    places = list(zip(cohort, ranks, owners, strict=True))
    return Assignment(
        [client_id for client_id, rank, _ in places if rank == world.rank],
        [client_id for client_id, rank, home in places if rank != home],
    )


def assign_clients(
    costs: Sequence[int], size: int, homes: Sequence[int] | None = None
) -> list[int]:
    """Rank of each client: longest processing time first, to the least loaded rank.

    Args:
        costs: predicted training time of each client, in any unit.
        size: number of ranks.
        homes: rank that keeps each client's state. A client stays there unless it would lengthen
            the makespan; see `TOLERATED_LOAD`.

    >>> assign_clients([5, 1, 4], 2)
    [0, 1, 1]
    >>> assign_clients([1, 1, 1, 1], 2, homes=[1, 1, 1, 0])
    [1, 1, 0, 0]
    """
    ranks = [-1] * len(costs)
    _assign_longest_first(costs, ranks, size)
    if homes is None:
        return ranks
    makespan = max(_loads(costs, ranks, size))
    at_home, load = [-1] * len(costs), [0] * size
    for client in _longest_first(costs):
        home = homes[client]
        if load[home] + costs[client] <= makespan:
            at_home[client] = home
            load[home] += costs[client]
    _assign_longest_first(costs, at_home, size)
    return at_home if max(_loads(costs, at_home, size)) <= TOLERATED_LOAD * makespan else ranks


def _longest_first(costs: Sequence[int]) -> list[int]:
    return sorted(range(len(costs)), key=lambda i: (-costs[i], i))


def _loads(costs: Sequence[int], ranks: Sequence[int], size: int) -> list[int]:
    load = [0] * size
    for cost, rank in zip(costs, ranks, strict=True):
        if rank >= 0:
            load[rank] += cost
    return load


def _assign_longest_first(costs: Sequence[int], ranks: list[int], size: int) -> None:
    """Assign the clients that have no rank (-1) yet, in place."""
    least = [(load, rank) for rank, load in enumerate(_loads(costs, ranks, size))]
    heapify(least)
    for client in _longest_first(costs):
        if ranks[client] < 0:
            load, rank = least[0]
            ranks[client] = rank
            heapreplace(least, (load + costs[client], rank))


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
