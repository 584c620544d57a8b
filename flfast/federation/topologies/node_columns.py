"""Columns of metrics about the nodes of a topology."""

from flfast.federation.loop import Federation
from flfast.federation.table_rows import Columns
from flfast.state.tree import leaves, num_bytes
from flfast.state.weights import model_weights


class NodeColumns:
    """Adds columns about the nodes of a topology to each round."""

    def on_round_trained(self, federation: Federation, row: Columns) -> None:
        """Add `topology/distance` and `topology/sent_bytes`, if there are nodes.

        If nodes are clients, these bytes are what clients send and get.
        """
        server, topology = federation.server, federation.topology
        if topology is None:
            return
        pairs = zip(leaves(server["models"]["params"]), leaves(server["params"]), strict=True)
        # Leaf by leaf: all differences at once would double the memory of the nodes.
        total = sum(float((nodes.double() - mean).square().sum()) for nodes, mean in pairs)
        row["topology/distance"] = (total / len(topology.shares)) ** 0.5
        num = int(server["sent"]) if int(server["round"]) == row["round"] else 0
        sent = row["topology/sent_bytes"] = num * num_bytes(model_weights(server))
        if topology.cloud_bandwidth is None:
            row["comm/up_bytes"] = row["comm/down_bytes"] = sent
