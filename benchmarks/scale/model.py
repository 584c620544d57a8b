"""Seconds of a round on many ranks, beside local training: formulas. Torch-free.

P is the number of ranks, K the number of clients in a cohort. gloo's all-gather is a ring of P - 1
hops, each with one rank's message. Its all-reduce is a ring of 2 (P - 1) hops, each with a part
1/P of the tensor. What all ranks do at the same time counts once.
"""

import math
from typing import NamedTuple

SMALLEST_ROOM = 1 << 10
"""Bytes that `distributed.world.gather` sends at least for each rank."""

FLAGS_BYTES = 40
"""Five flags of float64 that a checkpoint's callback sums over ranks in each round."""

RECORD_BYTES = 154, 8
"""What gloo writes about a rank into the store: bytes, and bytes for each of its peers."""

MEMBER_BYTES = 36
"""A rank's entry in the list of members, which every rank reads from the store."""


class Network(NamedTuple):
    """A network between any two ranks.

    Attributes:
        round_trip_s: latency of a message and its answer. A hop of gloo takes one: the receiver
            says that it is ready before the sender sends.
        bytes_per_s: bandwidth of a rank, in each direction.
    """

    round_trip_s: float
    bytes_per_s: float


NETWORKS = {
    "data centre (25 µs, 10 Gbit/s)": Network(50e-6, 10e9 / 8),
    "WAN (20 ms, 100 Mbit/s)": Network(40e-3, 100e6 / 8),
}


class Load(NamedTuple):
    """What a run is made of.

    Attributes:
        ranks: P.
        cohort: K.
        parameters: float32 numbers of the model; a client state has as many.
        test_examples: examples of the central test set, the only one.
    """

    ranks: int
    cohort: int
    parameters: int = 1_000_000
    test_examples: int = 10_000

    @property
    def share(self) -> int:
        """Clients of a rank."""
        return math.ceil(self.cohort / self.ranks)


class Constants(NamedTuple):
    """Seconds and bytes for one unit, measured by `constants.py`.

    Attributes:
        sample_s: of drawing a client of the cohort.
        assign_s: of assigning a client, and `assign_level_s`: for each doubling of the ranks.
        report_bytes: of a pickled report.
        exchange_s: of unpickling and sorting a report, on every rank.
        columns_s: of the columns that a report becomes, on every rank.
        spec_bytes: of the shapes that go with a rank's reports.
        spec_s: of reading those of one rank.
        row_s: of a row of `clients.csv`, on rank 0.
        prediction_bytes: of a predicted example.
        prediction_s: of reading a rank's predictions.
        state_s: of copying, pickling and reading a parameter of a client state.
        moved: fraction of a cohort whose states move, with 100 clients for each rank.
        moved_most: the largest number of states that a rank sends, over the mean.
        file_s: of a rank's file in a checkpoint, on rank 0.
        request_s: of a record in the store of rank 0, for which a rank waits and then asks.
        connect_s: of a connection to a peer.
    """

    sample_s: float
    assign_s: float
    assign_level_s: float
    report_bytes: float
    exchange_s: float
    columns_s: float
    spec_bytes: float
    spec_s: float
    row_s: float
    prediction_bytes: float
    prediction_s: float
    state_s: float
    moved: float
    moved_most: float
    file_s: float
    request_s: float
    connect_s: float


def room(num_bytes: float) -> int:
    """Bytes that `gather` sends for each rank, of which the largest message has `num_bytes`."""
    return max(SMALLEST_ROOM, 1 << max(0, math.ceil(num_bytes) - 1).bit_length())


def gather_s(ranks: int, num_bytes: float, network: Network) -> float:
    """An all-gather of messages of at most `num_bytes`, over a ring."""
    return (ranks - 1) * (network.round_trip_s + (8 + room(num_bytes)) / network.bytes_per_s)


def all_reduce_s(ranks: int, num_bytes: float, network: Network) -> float:
    """An all-reduce over a ring, as gloo does it."""
    return 2 * (ranks - 1) * (network.round_trip_s + num_bytes / ranks / network.bytes_per_s)


def tree_reduce_s(ranks: int, num_bytes: float, network: Network) -> float:
    """An all-reduce by recursive halving and doubling, which gloo does not do by default."""
    steps = math.ceil(math.log2(ranks))
    return 2 * (
        steps * network.round_trip_s + (ranks - 1) / ranks * num_bytes / network.bytes_per_s
    )


def round_terms(constants: Constants, load: Load, network: Network) -> dict[str, float]:
    """Seconds of each part of a round that clients without states take, by name."""
    c, ranks, cohort = constants, load.ranks, load.cohort
    reports = load.share * c.report_bytes + c.spec_bytes
    predictions = math.ceil(load.test_examples / ranks) * c.prediction_bytes
    return {
        "cohort drawn": cohort * c.sample_s,
        "cohort assigned to ranks": cohort * (c.assign_s + math.log2(ranks) * c.assign_level_s),
        "reports, on the network": gather_s(ranks, reports, network),
        "reports, read by every rank": cohort * (c.exchange_s + c.columns_s) + ranks * c.spec_s,
        "`clients.csv`, rank 0": cohort * c.row_s,
        "mean of the uploads": all_reduce_s(ranks, 8 * load.parameters, network),
        "predictions and metrics": gather_s(ranks, predictions, network)
        + gather_s(ranks, 0, network)
        + ranks * c.prediction_s,
        "flags": all_reduce_s(ranks, FLAGS_BYTES, network),
    }


def state_bytes(constants: Constants, load: Load) -> float:
    """The largest message with the states that one rank sends before, or after, local training."""
    return load.share * constants.moved * constants.moved_most * 4 * load.parameters


def other_terms(constants: Constants, load: Load, network: Network) -> dict[str, float]:
    """Seconds of what not every run or round has, by name."""
    c, ranks = constants, load.ranks
    moved = c.moved * load.cohort
    exchange = gather_s(ranks, state_bytes(c, load), network)
    return {
        "states that move, there and back": 2 * (exchange + moved * load.parameters * c.state_s),
        "a checkpoint's files, rank 0": ranks * c.file_s,
        "start": sum(start_terms(c, ranks, network, lazy=False).values()),
        "start, connections on demand": sum(start_terms(c, ranks, network, lazy=True).values()),
    }


def start_terms(
    constants: Constants, ranks: int, network: Network, *, lazy: bool
) -> dict[str, float]:
    """Seconds until all ranks are in a process group, without imports and data.

    Every rank reads from rank 0's store. `lazy` is gloo's `TORCH_GLOO_LAZY_INIT=1`: connections
    are made when they are used, to the two neighbours of the ring.
    """
    fixed, by_peer = RECORD_BYTES
    peers = 2 if lazy else ranks - 1
    record = fixed + (0 if lazy else by_peer * ranks)
    trip = network.round_trip_s
    # The store's client asks whether there is a key before it reads it, and gloo does so itself.
    asks = peers * 3 * trip
    return {
        "rank 0 reads the members": (ranks - 1) * (2 * trip + constants.request_s),
        "all read the list of members": ranks**2 * MEMBER_BYTES / network.bytes_per_s,
        "requests for records": max(asks, ranks * peers * constants.request_s),
        "bytes of records": ranks * peers * record / network.bytes_per_s,
        "connections": peers * (constants.connect_s + trip),
    }
