"""Which rank trains which client of a cohort, so that all ranks finish together."""

from collections.abc import Sequence
from typing import NamedTuple

from flfast.distributed.client_state_placement import owner
from flfast.distributed.world import World

TOLERATED_LOAD = 1.05
"""Of the balanced makespan: clients stay on the rank that keeps their state up to here."""


class Assignment(NamedTuple):
    """Who trains on this rank in a round.

    Attributes:
        here: clients that this rank trains.
        moved: clients of the cohort that train on another rank than the owner of their state.
    """

    here: list[int]
    moved: list[int]


def assign_to_all(cohort: Sequence[int]) -> Assignment:
    """Every rank trains every client, each on a part of every batch."""
    return Assignment(list(cohort), list(cohort))


def assign_to_first(cohort: Sequence[int], world: World) -> Assignment:
    """Rank 0 trains all clients."""
    moved = [client_id for client_id in cohort if owner(world, client_id)]
    return Assignment([] if world.rank else list(cohort), moved)


def assign_cohort(
    cohort: Sequence[int], costs: Sequence[int], world: World, *, stateful: bool
) -> Assignment:
    """Every rank trains a share of the clients, so that all finish together.

    Args:
        cohort: clients.
        costs: predicted cost of each, in any unit.
        world: the ranks of the run.
        stateful: whether clients have states, which are costly to move.
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
    """Rank of each client so that ranks finish together: longest first, to the least loaded.

    Args:
        costs: predicted cost per client, in any unit.
        size: number of ranks.
        homes: rank where each client would rather stay, as long as nobody has to wait for it.

    >>> assign_clients([5, 1, 4], 2)
    [0, 1, 1]
    >>> assign_clients([1, 1, 1, 1], 2, homes=[1, 1, 1, 0])
    [1, 1, 0, 0]
    """
    ranks = [-1] * len(costs)
    _assign_longest_first(costs, ranks, size)
    if homes is None:
        return ranks
    most = max(_loads(costs, ranks, size))
    stay, load = [-1] * len(costs), [0] * size
    for client in _longest_first(costs):
        home = homes[client]
        if load[home] + costs[client] <= most:
            stay[client] = home
            load[home] += costs[client]
    _assign_longest_first(costs, stay, size)
    return stay if max(_loads(costs, stay, size)) <= TOLERATED_LOAD * most else ranks


def _longest_first(costs: Sequence[int]) -> list[int]:
    return sorted(range(len(costs)), key=lambda i: (-costs[i], i))


def _loads(costs: Sequence[int], ranks: Sequence[int], size: int) -> list[int]:
    load = [0] * size
    for cost, rank in zip(costs, ranks, strict=True):
        if rank >= 0:
            load[rank] += cost
    return load


def _assign_longest_first(costs: Sequence[int], ranks: list[int], size: int) -> None:
    """Give a rank to all that have none."""
    load = _loads(costs, ranks, size)
    for client in _longest_first(costs):
        if ranks[client] < 0:
            ranks[client] = min(range(size), key=lambda r: (load[r], r))
            load[ranks[client]] += costs[client]
