"""What local training may read, on the device where it runs."""

from collections.abc import Sequence

from torch import Tensor, device

from flfast.algorithms.algorithm import Context
from flfast.state.tree import Tree, tree_map


class Contexts:
    """Copies contexts to a device; what clients of a round share is copied once.

    Args:
        device: where to.
    """

    def __init__(self, device: device) -> None:
        self._device, self._round_idx = device, -1
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def copied(self, contexts: Sequence[Context], round_idx: int) -> list[Context]:
        """Contexts on the device, where those that were one tensor still are.

        Args:
            contexts: anywhere.
            round_idx: theirs; within a round no tensor of a context changes.
        """
        known = self._copies if round_idx == self._round_idx else {}
        # With its origin, so that no other tensor gets its number; and none longer than needed.
        self._copies, self._round_idx = {}, round_idx

        def copy(leaf: Tensor) -> Tensor:
            if id(leaf) not in self._copies:
                found = known.get(id(leaf)) or (leaf, leaf.to(self._device))
                self._copies[id(leaf)] = found
            return self._copies[id(leaf)][1]

        return [
            context._replace(
                server=tree_map(copy, context.server),
                client=tree_map(copy, context.client),
                start=tree_map(copy, context.start),
            )
            for context in contexts
        ]


def readable(context: Context) -> Tree:
    """A context as steps read it."""
    return {"server": context.server, "client": context.client, "start": context.start}
