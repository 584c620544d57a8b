"""Where client states live in a world: the state of client k on rank k mod size, for good."""

from collections.abc import Sequence

from flfast.lit.world import World, gather
from flfast.state.store import ClientStates


def owner(world: World, client_id: int) -> int:
    """The rank that keeps a client's state."""
    return client_id % world.size


def fetch_states(world: World, states: ClientStates, cohort: Sequence[int]) -> None:
    """Give every rank the states of a cohort; collective."""
    mine = {k: states.get(k) for k in cohort if owner(world, k) == world.rank}
    for part in gather(world, mine):
        for client_id, state in part.items():
            if state is not None:
                states.put(client_id, state)


def return_states(
    world: World, states: ClientStates, cohort: Sequence[int], *, trained: Sequence[int]
) -> None:
    """Give owners what was trained here, and forget what belongs to others; collective."""
    for part in gather(world, {k: states.get(k) for k in trained}):
        for client_id, state in part.items():
            if state is not None:
                states.put(client_id, state)
    for client_id in cohort:
        if owner(world, client_id) != world.rank:
            states.drop(client_id)
