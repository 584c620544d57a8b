"""CFL: a cluster of clients is split in two where its clients pull in different directions.

Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization under Privacy Constraints. IEEE TNNLS 2020. https://arxiv.org/abs/1910.01991

    Delta_k = w_k - w_c,   Delta_c = mean of Delta_k over the clients of cluster c
    split c where the highest cosine of Delta_i and Delta_j across the parts is lowest,
        if |Delta_c| < eps1 and max_k |Delta_k| > eps2
    w_c := w_c + Delta_c, after a split by each part's own clients

As in the authors' code, a split needs three clients and some rounds before, and the gap between
clusters is not estimated. That code joins clients by complete linkage, which is not the optimum.
Clients of a split cluster that are not in the round's cohort go with the larger part.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Part, Records, Uploads, Weighting
from flfast.algorithms.kit.model_groups import equal_models, group_means, weighted_mean
from flfast.algorithms.kit.several_models import one_of, only_models
from flfast.state.options import Count, NonNegative, NonNegativeInt
from flfast.state.tree import Tree, leaves
from flfast.state.weights import model_weights

SMALLEST = 3
"""Members of a cluster that can be split."""


def cfl(
    *,
    eps1: NonNegative,
    eps2: NonNegative,
    warmup: NonNegativeInt,
    max_clusters: Count,
    weighting: Weighting,
    num_clients: int,
) -> Algorithm:
    """FedAvg in clusters, which the server finds; without a split it is FedAvg."""

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        models, before = server["models"], server["clusters"][uploads.clients]
        moves = leaves(uploads.rows["params"])
        changes = torch.cat([leaf.flatten(1).double() for leaf in moves], dim=1)
        after, num = split_clusters(
            *(before, changes, uploads.weights),
            num=int(server["num"]),
            limit=max_clusters if uploads.round > warmup else 1,
            eps=[eps1, eps2],
        )
        clusters = server["clusters"].index_copy(0, uploads.clients, after)
        means = group_means(models, before, after, uploads)
        return {**only_models(means), "clusters": clusters, "num": torch.tensor(num)}

    federated = clustered(max_clusters, num_clients)
    return replace(federated, weighting=weighting, server_step=server_step)


def clustered(limit: int, num_clients: int) -> Algorithm:
    """Clients that download and upload their cluster's model; algorithms add the server's step.

    Args:
        limit: C, most clusters.
        num_clients: in the federation; all of them begin in cluster 0.
    """

    def server_state(weights: Tree) -> Tree:
        clusters = torch.zeros(num_clients, dtype=torch.int64)
        models = equal_models(weights, limit)
        return {**only_models(models), "clusters": clusters, "num": torch.tensor(1)}

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        return one_of(server["models"], server["clusters"][list(clients)])

    return Algorithm(
        name="cfl",
        evaluate_server=False,
        server_state=server_state,
        send=send,
        parts={"params": Part("rows"), "buffers": Part("rows")},
        personal=lambda broadcast, client: model_weights(broadcast),
    )


def split_clusters(
    clusters: Tensor, changes: Tensor, weights: Tensor, *, num: int, limit: int, eps: list[float]
) -> tuple[Tensor, int]:
    """Split clusters whose members disagree; returns the new clusters [K], and their number.

    Args:
        clusters: clusters of K clients [K], in [0, num).
        changes: changes of the clients' models, float64 [K, P].
        weights: weights of the clients in means, float64 [K].
        num: clusters so far.
        limit: most clusters.
        eps: a cluster is split if the mean of its changes is shorter than the first number, and
            the longest change is longer than the second one.
    """
    clusters = clusters.clone()
    for cluster in clusters.unique().tolist():
        places = (clusters == cluster).nonzero().flatten()
        moves = changes[places]
        is_near = weighted_mean(moves, weights[places]).norm() < eps[0]
        pulls = moves.norm(dim=1).max() > eps[1]
        if num < limit and len(places) >= SMALLEST and is_near and pulls:
            clusters[places[bipartition(moves)[1]]] = num
            num += 1
    return clusters, num


def bipartition(vectors: Tensor) -> tuple[list[int], list[int]]:
    """The two parts with the lowest highest cosine similarity between them, the larger one first.

    Pairs are joined from the most similar one on, until two parts are left.

    Args:
        vectors: [n, P], n >= 2.

    >>> bipartition(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]]))
    ([0, 2], [1])
    """
    unit = torch.nn.functional.normalize(vectors, dim=1)
    num = len(unit)
    rows, columns = torch.triu_indices(num, num, offset=1)
    order = (unit @ unit.T)[rows, columns].argsort(descending=True, stable=True)
    part = list(range(num))
    for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if len(set(part)) == 2:
            break
        kept, joined = part[i], part[j]
        part = [kept if label == joined else label for label in part]
    first, second = ([k for k in range(num) if part[k] == label] for label in sorted(set(part)))
    return (first, second) if len(first) >= len(second) else (second, first)
