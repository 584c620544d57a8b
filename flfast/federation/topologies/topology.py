"""Nodes between clients and their common model, which hold models of their own and mix them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Part, Records, Uploads
from flfast.algorithms.kit.model_groups import equal_models, group_means, mean_of
from flfast.algorithms.kit.several_models import one_of
from flfast.state.capabilities import breaking, needing
from flfast.state.near_ties import nearest_whole
from flfast.state.tree import Tree, tree_map
from flfast.state.weights import model_weights

NODES = needing("rounds") | breaking("each node averages its own clients", "sums", "one broadcast")
ROWS = Part("rows")
_OF_AVERAGING = (
    *("server_state", "broadcast", "send", "record", "parts", "server_step"),
    *("round", "calls"),
)
"""Fields that an algorithm must leave as they are."""


@dataclass(frozen=True)
class Topology:
    """Nodes, each with a model, of M.

    A round trains each node's clients from the node's model, averages them there, and then mixes
    the models of the nodes.

    Attributes:
        name: option of `topology=`.
        node_of: node of each client, int64 [K].
        shares: weights of the nodes in the mean model, float64 [M], together 1.
        mixing: (round from 1, nodes that take part, bool [M]) -> float64 [M, M]. Rows are weights
            of the models that a node mixes.
        sends: (round, nodes that take part) -> models that each node sends, and as many it gets,
            int64 [M].
        cloud_bandwidth: bytes per second between a node and the cloud, each way; infinity costs
            nothing. None: node k is client k, and exchanges models with other nodes directly.
        mixes_before: whether the models before the round are mixed, to which changes are added.
    """

    name: str
    node_of: np.ndarray
    shares: np.ndarray
    mixing: Callable[[int, np.ndarray], np.ndarray]
    sends: Callable[[int, np.ndarray], np.ndarray]
    cloud_bandwidth: float | None
    mixes_before: bool = False

    def neighbours(self) -> list[list[int]] | None:
        """Neighbours of each client in round 1; None if nodes are no clients."""
        if self.cloud_bandwidth is not None:
            return None
        mixed = self.mixing(1, np.ones(len(self.shares), dtype=bool)) != 0
        np.fill_diagonal(mixed, val=False)
        return [np.flatnonzero(row).tolist() for row in mixed]


def on_nodes(algorithm: Algorithm, topology: Topology) -> Algorithm:
    """The algorithm on a topology; the server's model is the mean of the nodes'.

    Raises:
        ValueError: if the algorithm does more than to average changes of the model.
    """
    plain = Algorithm(name="")
    averages = all(getattr(algorithm, name) == getattr(plain, name) for name in _OF_AVERAGING)
    if not averages or algorithm.kit.place is not None:
        raise ValueError(
            f"topology={topology.name} with algorithm={algorithm.name}, as set, which needs a "
            f"server that does more than to average whole models; allowed: topology=star, or "
            f"algorithms such as fedavg, fedprox, fedsam, ditto, mode=federated, bn other than "
            f"local, and local_optimizer_state other than average"
        )
    place = torch.from_numpy(topology.node_of)

    def server_state(weights: Tree) -> Tree:
        models = equal_models(weights, len(topology.shares))
        return {**weights, "models": models, "round": torch.tensor(0), "sent": torch.tensor(0)}

    def send(server: Tree, _: Records, clients: Sequence[int]) -> Tree:
        return one_of(server["models"], place[list(clients)])

    return replace(
        algorithm,
        server_state=server_state,
        broadcast=lambda server: {"params": {}, "buffers": {}},
        send=send,
        parts={"params": ROWS, "buffers": ROWS},
        server_step=partial(_server_step, topology),
        personal=algorithm.personal or (lambda broadcast, client: model_weights(broadcast)),
    )


def _server_step(topology: Topology, server: Tree, uploads: Uploads) -> Tree:
    """The mean of each node's clients, mixed with the models of other nodes."""
    old, number = server["models"], uploads.round
    nodes = torch.from_numpy(topology.node_of)[uploads.clients]
    trained = group_means(old, nodes, nodes, uploads)
    present = np.bincount(nodes, minlength=len(topology.shares)) > 0
    weights = torch.from_numpy(topology.mixing(number, present))
    if topology.mixes_before:
        models = tree_map(lambda new, at: _mixed(weights, at) + (new - at), trained, old)
    else:
        models = tree_map(lambda new: _mixed(weights, new), trained)
    models = tree_map(lambda leaf, like: leaf.to(like.dtype), models, old)
    sent = int(topology.sends(number, present).sum())
    if topology.cloud_bandwidth is not None:
        sent *= 2  # the cloud answers
    counts = {"round": torch.tensor(number), "sent": torch.tensor(sent)}
    mean = mean_of(models, torch.from_numpy(topology.shares))
    return {**server, **mean, "models": models, **counts}


def _mixed(weights: Tensor, rows: Tensor) -> Tensor:
    mixed = torch.tensordot(weights, rows.double(), dims=1)
    return mixed if rows.is_floating_point() else nearest_whole(mixed)
