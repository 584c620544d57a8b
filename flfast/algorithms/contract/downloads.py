"""What clients download in a round: the broadcast, and what the server sends to each of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import NamedTuple, Protocol

from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.records import Records
from flfast.state.plan import RoundPlan
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, merge, num_bytes, tree_map, without
from flfast.state.weights import model_weights


class Version(NamedTuple):
    """A server's model that clients are training from, and how they were told to train.

    Attributes:
        broadcast: broadcast of the server after round `plan.round_idx` - 1.
        plan: plan of round `plan.round_idx`.
    """

    broadcast: Tree
    plan: RoundPlan


class Order(NamedTuple):
    """What one client of a call does differently from the others.

    Attributes:
        version: that it downloaded; None is the server's current one.
        work_fraction: fraction of the local epochs or steps that the client does, in (0, 1].
        scale: factor of what its upload changes, such as a discount for staleness.
        mixes: whether the change is counted from the server's current model, which the upload is
            then mixed with, instead of from the version that it downloaded.
    """

    version: Version | None = None
    work_fraction: float = 1.0
    scale: float = 1.0
    mixes: bool = False


class Download(Protocol):
    """What each client of a call starts with."""

    def __call__(self, client_id: int) -> Tree:
        """What the client downloads. Leaves that clients share are the same tensors."""

    def plan(self, client_id: int, plan: RoundPlan) -> RoundPlan:
        """The client's own plan: its round, learning rate, epochs or steps, and fraction of them.

        The plan of the call decides all else.
        """


class Downloads:
    """What each client of a call downloads; see `Download`.

    `server` is the server state, `records` is what the server keeps of clients, and `clients` are
    those of the call. `encode` is broadcast -> (what clients decode, bytes); None sends it as it
    is.

    Attributes:
        orders: by client, for those that do something else than the others.
        exact: the broadcast before it was encoded.
        broadcast: what clients without a version of their own download.
        num_bytes: for one client.
        num_clients: number of clients of the call.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        server: Tree,
        records: ClientStates,
        clients: Sequence[int],
        orders: Mapping[int, Order] | None = None,
        *,
        encode: Callable[[Tree], tuple[Tree, int]] | None = None,
    ) -> None:
        self.exact, self._rows = algorithm.broadcast(server), Tree()
        self.orders, self.num_clients = orders or {}, len(clients)
        self._places = {client_id: place for place, client_id in enumerate(clients)}
        if algorithm.send is not None and clients:
            initial = partial(algorithm.record.initial, server) if algorithm.record else Tree
            known = Records(initial, records)
            self._rows = algorithm.send(server, known, clients)
        if encode is None:
            self.broadcast, self.num_bytes = self.exact, num_bytes(self.exact)
        else:
            self.broadcast, self.num_bytes = encode(self.exact)
        self.num_bytes += num_bytes(self._rows) // max(len(clients), 1)

    def __call__(self, client_id: int) -> Tree:
        """See `Download`."""
        order = self.orders.get(client_id)
        broadcast = order.version.broadcast if order and order.version else self.broadcast
        if not self._rows:
            return broadcast
        return merge(broadcast, tree_map(itemgetter(self._places[client_id]), self._rows))

    def sent_to(self, clients: Tensor) -> Tree:
        """What the server sent to some clients [K] beside the broadcast, each leaf [K, ...]."""
        places = [self._places[client_id] for client_id in clients.tolist()]
        return tree_map(lambda leaf: leaf[places], self._rows) if places else {}

    def plan(self, client_id: int, plan: RoundPlan) -> RoundPlan:
        """See `Download`."""
        order = self.orders.get(client_id)
        if order is None:
            return plan
        given = order.version.plan if order.version else plan
        return plan._replace(
            round_idx=given.round_idx,
            lr=given.lr,
            local_epochs=given.local_epochs,
            local_steps=given.local_steps,
            work_fraction=order.work_fraction,
        )


class OwnDownloads(NamedTuple):
    """Each client of a call downloads what is given for it in `trees`; see `Download`."""

    trees: Mapping[int, Tree]

    def __call__(self, client_id: int) -> Tree:
        """See `Download`."""
        return self.trees[client_id]

    def plan(self, client_id: int, plan: RoundPlan) -> RoundPlan:
        """See `Download`: that of the call."""
        return plan


def first_downloads(algorithm: Algorithm, weights: Tree, client_id: int = 0) -> Downloads:
    """What a client downloads in round 1.

    `weights` are the initial ones of the model.
    """
    return Downloads(algorithm, algorithm.server_state(weights), ClientStates(), [client_id])


@contextmanager
def tried_before_round_1(broadcast: Tree) -> Iterator[None]:
    """Around local steps that are tried with `first_downloads`.

    Raises:
        KeyError: that of the steps, which says what is broadcast then.
    """
    try:
        yield
    except KeyError as error:
        known = ", ".join(broadcast)
        error.args = (
            f"{error.args[0]}, in a step that is tried before round 1; the initial server state "
            f"broadcasts {known}",
        )
        raise


def shared_weights(algorithm: Algorithm, initial: Tree) -> Tree:
    """Weights whose changes clients upload, before round 1.

    `initial` are the initial weights of the model.
    """
    shared = model_weights(first_downloads(algorithm, initial)(0))
    if shared["params"]:
        return shared
    # The server broadcasts nothing: it may know clients' own models instead.
    return first_record(algorithm, initial)


def first_record(algorithm: Algorithm, initial: Tree) -> Tree:
    """The server's record of a client before round 1; empty if it keeps none.

    `initial` are the initial weights of the model.
    """
    record = algorithm.record
    return record.initial(algorithm.server_state(initial)) if record else {}


def joint_leaves(algorithm: Algorithm, weights: Tree) -> Tree:
    """Leaves that `start` adds to the model's, such as a second model, for a new client.

    `weights` are the initial ones of the model.

    Returns:
        `{"params": ..., "buffers": ...}`, both empty for most algorithms.
    """
    download = first_downloads(algorithm, weights)(0)
    start = algorithm.start(download, algorithm.client_state(download))
    return without(model_weights(start), weights)
