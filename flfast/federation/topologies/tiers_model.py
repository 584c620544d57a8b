"""Tiers: edge servers average their clients in each round, and the cloud averages them at times.

Liu, Zhang, Song, Letaief: Client-Edge-Cloud Hierarchical Federated Learning. ICC 2020, Algorithm 1
(HierFAVG). https://arxiv.org/abs/1905.06641

    w_l := mean of the models of the clients of edge l, weighted as the algorithm weighs them
    w_l := sum_m D_m / D * w_m,   every `cloud_every` rounds;  D_m: training examples at edge m
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from flfast.federation.devices.device import bytes_per_second
from flfast.federation.topologies.topology import NODES, Topology
from flfast.state.options import Count, Positive


def tiers(  # noqa: PLR0913 - one parameter an option
    *,
    edges: Count,
    cloud_every: Count,
    assign: Literal["round_robin", "by_labels"] | str,
    cloud_mbit: Positive | None,
    class_counts: Callable[[], np.ndarray],
    participants: np.ndarray,
    seed: int,
) -> Annotated[Topology, NODES]:
    """Edge servers between clients and the cloud.

    Args:
        edges: number M of edge servers.
        cloud_every: rounds from one mean of all edges to the next.
        assign: `round_robin`; `by_labels`, in clusters of like labels; or a file with the number
            of each client's edge, from 0, in a line each.
        cloud_mbit: bandwidth of each edge's link to the cloud, Mbit/s, each way; None is infinite.
        class_counts: () -> training examples of each client by class, int64 [K, C].
        participants: clients that are not held out; the others' examples do not count.
        seed: seed of the clusters.

    Raises:
        ValueError: if there is no such file, it does not fit, or an edge has no client.
    """
    counts = class_counts()
    node_of = _edges_of(assign, edges, counts, seed)
    sizes = counts.sum(1)[participants]
    examples = np.bincount(node_of[participants], weights=sizes, minlength=edges)
    if not examples.all():
        raise ValueError(
            f"topology.edges={edges}: topology.assign={assign} leaves an edge without clients; "
            f"allowed: fewer edges, here at most {len(np.unique(node_of))}"
        )
    shares = examples / examples.sum()

    def mixing(number: int, _: np.ndarray) -> np.ndarray:
        return np.eye(edges) if number % cloud_every else np.tile(shares, (edges, 1))

    def sends(number: int, _: np.ndarray) -> np.ndarray:
        meet = edges > 1 and number % cloud_every == 0
        return np.full(edges, int(meet))

    return Topology("tiers", node_of, shares, mixing, sends, bytes_per_second(cloud_mbit))


def _edges_of(assign: str, edges: int, counts: np.ndarray, seed: int) -> np.ndarray:
    num_clients = len(counts)
    if assign == "round_robin":
        return np.arange(num_clients) % edges
    if assign == "by_labels":
        from sklearn.cluster import KMeans  # half a second

        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        found = KMeans(min(edges, num_clients), n_init=10, random_state=seed).fit(shares)
        return found.labels_.astype(np.int64)
    where = f"topology.assign={assign}"
    if not Path(assign).is_file():
        raise ValueError(f"{where}: is no file; allowed: round_robin, by_labels, or a file")
    words = Path(assign).read_text(encoding="utf-8").split()
    if len(words) != num_clients or not all(w.isdigit() and int(w) < edges for w in words):
        raise ValueError(
            f"{where}: has {len(words)} values; allowed: a number from 0 to {edges - 1} for each "
            f"of {num_clients} clients"
        )
    return np.array([int(word) for word in words])
