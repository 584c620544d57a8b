"""IFCA: a model for each cluster of clients; clients choose the model with the lowest loss.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS
2020, Algorithm 1 with model averaging. https://arxiv.org/abs/2006.04088

HypCluster is the same (Mansour, Mohri, Ro, Suresh 2020, https://arxiv.org/abs/2002.10619).

    j_k = argmin_j F_k(w_j[t]),   w_k = local training from w_j[t] with j = j_k
    w_j[t+1] = mean of w_k over the clients with j_k = j;   w_j[t] if there are none

The authors' code draws the initial models independently; `several` derives them. Clients upload
changes of all models, zero for those that they did not choose, and robust rules act on these.
"""

from functools import partial

import torch
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Context, Finished, LocalStage, Part, Weighting
from flfast.algorithms.kit.several_models import (
    LOSSES,
    change_of_one,
    changed,
    exchanged,
    lowest,
    one_of,
    only_models,
    several,
    with_one,
)
from flfast.state.options import Count, UpToOne
from flfast.state.tree import Tree, part_of

MEMBERS = Part(over="members")


def ifca(*, num_clusters: Count, spread: UpToOne, weighting: Weighting, seed: int) -> Algorithm:
    """FedAvg in clusters, which clients choose in every round; with one cluster it is FedAvg."""
    first = partial(several, num=num_clusters, spread=spread, seed=seed)

    def begin(weights: Tree, ctx: Context) -> Tree:
        return exchanged(weights, ctx.server["models"], lowest(ctx))

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        cluster, old = lowest(ctx), one_of(ctx.server["models"], lowest(ctx))
        members = F.one_hot(cluster, num_clusters).double()
        upload = change_of_one(part_of(done.weights, old), old, members)
        return {**upload, "members": members}, {"cluster": cluster}

    return Algorithm(
        name="ifca",
        weighting=weighting,
        evaluate_server=False,
        server_state=lambda weights: only_models(first(weights)),
        client_state=lambda broadcast: {"cluster": torch.tensor(0)},
        broadcast=lambda server: only_models(server["models"]),
        start=lambda broadcast, client: with_one(broadcast, 0),
        stages=(LOSSES, LocalStage(begin=begin)),
        finish=finish,
        parts={"params": MEMBERS, "buffers": MEMBERS, "members": Part(learned=False)},
        server_step=lambda server, uploads: only_models(changed(server["models"], uploads.mean)),
        personal=lambda broadcast, client: with_one(broadcast, client["cluster"]),
    )
