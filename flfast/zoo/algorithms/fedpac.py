"""FedPAC: aligned features, and for each client the combination of heads that suits it best.

Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier
Collaboration. ICLR 2023, Algorithm 1. https://arxiv.org/abs/2306.11867

    m_k[j] = sum_{i: y_i = j} z_i / n_k,   V_k = (mean_i |z_i|^2 - |m_k|^2) / n_k
    h_k := SGD on F_k(w[t], h_k), one epoch
    w_k := SGD on F_k(w_k, h_k) + lam * mean_i |z_i - c[y_i]|^2 / D, local epochs
    c[j] := mean of z over the cohort's examples of class j,   w[t+1] = sum_k n_k / n * w_k
    h_k := sum_j a_kj * h_j,   a_k = argmin |m_k - sum_j a_j * m_j|^2 + sum_j a_j^2 * V_j

z are features before the head, [D], and a_k is on the simplex over the cohort. A class keeps its
last c, and has no term before. The authors' code also drops a_kj below 0.001.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import Context, Finished, LocalStage, Measure, Task
from flfast.algorithms.contract.records import Record
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.algorithms.kit.last_layer import LinearHead, linear_head
from flfast.algorithms.kit.split import split
from flfast.datamodules.batches import Batch
from flfast.state.options import NonNegative, Positive
from flfast.state.tree import Tree, add, merge, part_of, tree_map, without
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.class_means import NAME, class_sums
from flfast.zoo.algorithms.kit.min_norm import min_norm_weights

STATISTICS = "head statistics"
"""Name of the measure."""


def fedpac(
    *, lam: NonNegative, head_lr: Positive, head: list[str] | None, initial: Tree
) -> Algorithm:
    """FedRep with feature alignment, and heads that the server combines for each client."""
    top, (kept, body) = linear_head(initial, head), split(initial, head)
    like = kept["params"][top.names[0]]
    first = {"c": torch.zeros_like(like), "counts": torch.zeros_like(like[:, 0])}

    def aligned(task: Task, params: Tree, batch: Batch, ctx: Context) -> torch.Tensor:
        z, loss = task.features(params, batch, layer=top.layer)
        far = (z - ctx.server["c"][batch.targets]).square().mean(1)
        return loss + lam * task.mean(far * (ctx.server["counts"][batch.targets] > 0))

    def apart(weights: Tree) -> Tree:
        return {**without(model_weights(weights), kept), "own": {"head": part_of(weights, kept)}}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return merge(apart(ctx.change(done.weights)), statistics(ctx, like.dtype)), {}

    def record(server: Tree, uploads: Uploads) -> Tree:
        own = uploads.rows["own"]
        return combined(**{**own, "head": add(uploads.sent, own["head"])})

    fit = LocalStage(kept["params"].keys(), epochs=1, lr=head_lr)
    align = LocalStage(body["params"].keys(), loss=aligned)
    counts = Part("sum", learned=False)
    return Algorithm(
        name="fedpac",
        tasks=("classification",),
        evaluate_server=False,
        server_state=lambda weights: {**weights, **first},
        broadcast=lambda server: without(server, kept),
        send=lambda server, records, clients: records[clients],
        record=Record(record, initial=lambda server: part_of(server, kept)),
        stages=(statistics_sums(top), fit, align, class_sums(len(like), top.fixed_features)),
        finish=finish,
        parts={"own": Part("rows"), "sums": Part("sum", over="counts"), "counts": counts},
        server_step=server_step,
        personal=lambda download, client: model_weights(download),
    )


def server_step(server: Tree, up: Uploads) -> Tree:
    """Add the mean change to w, and replace c of the classes that the cohort has."""
    n = up.mean["counts"]
    c = up.mean["sums"].where(n.unsqueeze(1) > 0, server["c"])
    return {**add(server, {**model_weights(up.mean), "counts": n}), "c": c}


def statistics_sums(head: LinearHead) -> Measure:
    """The measure for `statistics`, of features before a head."""
    by_class = class_sums(head.shape[0], head.fixed_features)

    def sums(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
        squares = head.fixed_features(task, weights, batch).square().sum()
        return {**by_class.sums(task, weights, batch, ctx), "squares": squares}

    return Measure(STATISTICS, sums)


def statistics(ctx: Context, dtype: torch.dtype) -> Tree:
    """What a client uploads, after the measure `statistics_sums` and then, trained, `class_sums`.

    All leaves have the given data type.

    Returns:
        `sums` and `counts` of the trained features by class, and `own`: `means` m [C, D], sums of
        the first features z over the examples of each class divided by the number n of all
        examples, and `variance` [], (mean of |z|^2 - |m|^2) / n.
    """
    first = ctx.measured[STATISTICS]
    n = first["counts"].sum()
    means = first["sums"] / n
    variance = (first["squares"] / n - means.square().sum()) / n
    found = {**ctx.measured[NAME], "own": {"means": means, "variance": variance}}
    return tree_map(lambda leaf: leaf.to(dtype), found)


def combined(*, head: Tree, means: Tensor, variance: Tensor) -> Tree:
    """Heads sum_j a_kj * h_j of K clients, where a_k is what `combinations` gives.

    Leaves of h are [K, ...]; `means` [K, C, D] and `variance` [K] are those of `statistics`.
    """
    weights = combinations(means, variance)
    return tree_map(lambda leaf: torch.tensordot(weights.to(leaf), leaf, 1), head)


def combinations(means: Tensor, variance: Tensor) -> Tensor:
    """Row k: argmin |m_k - sum_j a_j m_j|^2 + sum_j a_j^2 V_j over the simplex, float64 [K, K].

    m is [K, C, D], and V is [K].
    """
    m, v = means.flatten(1).double(), variance.double().clamp(min=0)  # an attacker's may be < 0
    return torch.stack([_combination(m - own, v) for own in m])


def _combination(far: Tensor, variance: Tensor) -> Tensor:
    gram = far @ far.T + variance.diag()
    scale = gram.diagonal().amax().clamp(min=torch.finfo(gram.dtype).tiny)
    return min_norm_weights(gram / scale, torch.full_like(variance, 1 / len(far)), 1.0)
