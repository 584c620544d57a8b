"""The virtual time of nodes, each of which waits only for those whose models it mixes."""

import numpy as np

from flfast.federation.timing import Timing
from flfast.federation.topologies.topology import Topology


class NodeClocks:
    """Virtual seconds at the nodes of a topology, or at one server.

    A node's round ends with its slowest client. Then the nodes send their models, each to all
    that mix it, and a node goes on when it has got all that it mixes. With sends_n models of S
    bytes that node n sends and gets:

        own_n   = clock_n + seconds of its round
        ready_n = own_n + sends_n * S / up_n        (clock_n + ..., if models are mixed before)
        clock_n = max(own_n, max over nodes m that n mixes of ready_m + sends_n * S / down_n)

    A node without clients in a round goes on with the earliest node that has some.

    Attributes:
        now: float64 [M].
    """

    def __init__(self, topology: Topology | None, model_bytes: int, timing: Timing) -> None:
        self._topology, self._model_bytes, self._timing = topology, model_bytes, timing
        self.now = np.zeros(1 if topology is None else len(topology.shares))

    @property
    def is_ideal(self) -> bool:
        """Whether exchanges between nodes take no time if devices are ideal."""
        bandwidth = None if self._topology is None else self._topology.cloud_bandwidth
        return bandwidth is None or np.isinf(bandwidth)

    def nodes_of(self, clients: np.ndarray) -> np.ndarray:
        """Node of each client, int64 [K]."""
        if self._topology is None:
            return np.zeros(len(clients), dtype=np.int64)
        return self._topology.node_of[clients]

    def advance(
        self, number: int, seconds: np.ndarray, called: np.ndarray, present: np.ndarray
    ) -> dict[str, float]:
        """Go to the end of a round.

        Args:
            number: of the round, from 1.
            seconds: that each node's own clients take, float64 [M].
            called: whether the node has clients in the round, bool [M].
            present: whether an upload reached it in time, bool [M]. Others exchange nothing.

        Returns:
            Columns: mean seconds of the nodes' own rounds, and of exchanges and waiting.
        """
        topology, before = self._topology, self.now
        own = before + seconds
        if topology is None:
            self.now = own
            return {}
        # If nobody has trained, models of this round meet no others.
        sends = topology.sends(number, present) * present.any() * self._model_bytes
        if topology.cloud_bandwidth is None:
            devices = self._timing.devices(np.arange(len(own)))
            up, down = devices.up, devices.down
        else:
            up = down = np.array(topology.cloud_bandwidth)
        ready = (before if topology.mixes_before else own) + sends / up
        mixes = topology.mixing(number, present) * present.any() != 0
        got = np.where(mixes, ready, 0.0).max(1) + sends / down
        self.now = np.maximum(own, got)
        if called.any():
            self.now[~called] = np.maximum(self.now, self.now[called].min())[~called]
        return {
            "topology/node_seconds": float(seconds.mean()),
            "topology/exchange_seconds": float((self.now - own).mean()),
        }
