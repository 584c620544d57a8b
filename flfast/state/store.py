"""Client states: what clients keep between rounds, in memory, for clients that took part."""

from flfast.state.tree import Tree, tree_map


class ClientStates:
    """States by client; memory grows with the clients touched, not with the population."""

    def __init__(self) -> None:
        self._states: dict[int, Tree] = {}

    def get(self, client_id: int) -> Tree | None:
        """The client's state, or None before its first round."""
        return self._states.get(client_id)

    def put(self, client_id: int, state: Tree) -> None:
        """Keep a state."""
        self._states[client_id] = tree_map(lambda leaf: leaf.detach(), state)

    def drop(self, client_id: int) -> None:
        """Forget a state, if there is one."""
        self._states.pop(client_id, None)

    def __len__(self) -> int:
        return len(self._states)
