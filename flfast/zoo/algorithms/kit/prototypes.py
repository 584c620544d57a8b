"""Class prototypes of many clients: contrasts with them, nearest classes, and the latest ones."""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, LocalStage, Task, Uploads
from flfast.algorithms.kit.last_layer import LinearHead
from flfast.state.tree import Tree, merge
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.class_means import class_sums

EXCLUDED = -1e4
"""Logit of a class that is not in the sum, or added to its logit. Minus infinity in all of them
has no gradient, and would make padding NaN."""


def pulled_to_prototypes(
    name: str, top: LinearHead, shared: Tree, *, known: str, lam: float
) -> Algorithm:
    """Clients whose features z [D] are pulled to prototypes P of their classes.

        h_k = F_k + lam * mean_i |z_i - P[y_i]|^2 / D

    A client predicts the class of the nearest prototype, and with its head before there are any.
    Algorithms add what clients upload, and the server's step. Means of z by class are measured.

    Args:
        name: of the algorithm.
        top: the head, whose inputs are z.
        shared: of the server state before round 1, and broadcast: `prototypes` [C, D], and the
            leaf `known`, [C] or [].
        known: name of the leaf that is above 0 for classes that have prototypes.
        lam: strength of the pull.
    """
    num_classes = len(shared["prototypes"])

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z, loss = task.features(params, batch, layer=top.layer)
        far = (z - ctx.server["prototypes"][batch.targets]).square().mean(1)
        return loss + lam * task.mean(
            far * (ctx.server[known].expand(num_classes)[batch.targets] > 0)
        )

    def of_server(server: Tree) -> Tree:
        return {key: server[key] for key in shared}

    def predict(task: Task, weights: Tree, batch: Batch) -> Tensor:
        if not weights[known].any():
            return task.logits(weights, batch)
        z = top.fixed_features(task, weights, batch)
        return nearest(z, weights["prototypes"].to(z), weights[known])

    return Algorithm(
        name=name,
        tasks=("classification",),
        server_state=lambda weights: {**weights, **shared},
        broadcast=lambda server: {**model_weights(server), **of_server(server)},
        stages=(LocalStage(loss=loss), class_sums(num_classes, top.fixed_features)),
        personal=lambda sent, _: merge(model_weights(sent), {"buffers": of_server(sent)}),
        predict=predict,
    )


def contrast(z: Tensor, targets: Tensor, prototypes: Tensor, known: Tensor, tau: float) -> Tensor:
    """-log(exp(s_y) / sum over known classes j != y of exp(s_j)), s_j = <z, P[j]> / tau, [B, M].

    It is 0 where the own class is unknown, or all others are.

    Args:
        z: features [B, D], of length one.
        targets: y, int64 [B].
        prototypes: M sets P [M, C, D].
        known: 1 for classes that have prototypes, else 0 [C].
        tau: temperature.
    """
    similar = (z @ prototypes.flatten(0, 1).T).unflatten(1, (-1, len(known))) / tau
    own = F.one_hot(targets, len(known)).to(z.dtype).unsqueeze(1)  # [B, 1, C]
    others = known * (1 - own)
    rest = torch.where(others > 0, similar, EXCLUDED).logsumexp(2)
    defined = known[targets].unsqueeze(1) * (others.sum(2) > 0)
    return (rest - (similar * own).sum(2)) * defined


def nearest(z: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Logits [B, C]: minus squared distances of features [B, D], lower for unknown classes."""
    far = torch.cdist(z, prototypes).square()
    return -torch.where(known > 0, far, far.amax() + 1)


def no_rows(num: int, like: Tree) -> Tree:
    """Room for the rows of `num` clients, for `latest`; leaves of `like` are one client's."""
    rows = {name: leaf.new_zeros(num, *leaf.shape) for name, leaf in like.items()}
    return {**rows, "clients": torch.full((num,), -1)}


def latest(old: Tree, uploads: Uploads) -> Tree:
    """The last rows of the M clients that uploaded last; unused ones have `clients` = -1.

    Rows of the uploads replace the clients' old ones, leaves [M, ...] and ids `clients` [M].
    """
    kept = torch.isin(old["clients"], uploads.clients, invert=True)
    rows, num = {**uploads.rows, "clients": uploads.clients}, len(kept)
    unused = no_rows(num, {name: leaf[0] for name, leaf in old.items() if name != "clients"})
    return {
        name: torch.cat([rows[name], leaf[kept], unused[name]])[:num] for name, leaf in old.items()
    }


def complete(local: Tree) -> Tree:
    """The global prototypes and those of M clients, without gaps.

    Args:
        local: of `latest`, with `prototypes` [M, C, D] that are zero where `known` [M, C] is 0.

    Returns:
        `prototypes` [1 + M, C, D]: their mean over the clients that have the class, which fills
        the others' gaps; `known` [C]; and `weights` [1 + M]: 1 for the mean, 1 / M' for each of
        the M' <= M clients in use.
    """
    own, known, used = local["prototypes"], local["known"], (local["clients"] >= 0).double()
    mean = own.sum(0) / known.sum(0).clamp(min=1).unsqueeze(1)
    filled = torch.where(known.unsqueeze(2) > 0, own, mean)
    weights = torch.cat([torch.ones(1).double(), used / used.sum().clamp(min=1)])
    return {
        "prototypes": torch.cat([mean.unsqueeze(0), filled]),
        "known": known.amax(0),
        "weights": weights.to(own.dtype),
    }
