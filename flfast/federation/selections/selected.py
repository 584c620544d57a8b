"""A round in which only the selected clients take part."""

from collections.abc import Callable, Sequence
from typing import Annotated

from flfast.algorithms.contract import Algorithm, Round, Uploads
from flfast.state.capabilities import breaking, needing
from flfast.state.tree import Tree

Selecting = Annotated[
    Algorithm,
    needing("messages", "rounds")
    | breaking("it reads reports of single clients", "sums", "protected parts")
    | breaking("it measures clients before they train", "one call", "one objective"),
]
"""An algorithm whose rounds choose clients by what they report."""


class SelectedRound:
    """A `Round` whose cohort is the selected clients.

    An algorithm with a `round` of its own calls them only. `receive` gives what the algorithm sees
    of the uploads of its own call.
    """

    def __init__(
        self,
        rnd: Round,
        clients: Sequence[int],
        receive: Callable[[Uploads], Uploads] = lambda uploads: uploads,
    ) -> None:
        self._round, self.clients, self._receive = rnd, list(clients), receive
        self.number, self.on_server = rnd.number, rnd.on_server

    def call(
        self, server: Tree, local: Algorithm | None = None, *, clients: Sequence[int] | None = None
    ) -> Uploads:
        """See `Round`."""
        called = self.clients if clients is None else clients
        uploads = self._round.call(server, local, clients=called)
        return self._receive(uploads) if local is None else uploads


def none(algorithm: Algorithm) -> Algorithm:
    """The whole cohort trains."""
    return algorithm
