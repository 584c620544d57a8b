"""FedETF: all clients train features for one fixed classifier, whose classes are a simplex.

Li, Shang, He, Lin, Wu: No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning
with Synthetic and Fixed Classifier. ICCV 2023. https://arxiv.org/abs/2303.10058

    f = P(z) / |P(z)|,   V = the simplex [C, C]
    h_k(w, P, beta) = mean over examples of CE(beta * V' f + log n_k, y)
    (P_k, V_k) := `cycles` times: SGD on CE(beta * V_k' f, y) by V_k, then by P_k

z are features before the last layer, and the projection P is that layer: f has C dimensions, as in
the authors' LeNet-5; their other models have more. n_k are the client's class counts; a class that
it lacks is not in the softmax. beta is trained and averaged, too. The server's model gives P(z),
whose largest component is the predicted class; its loss in evaluation is not that of f.

The last line personalises a client's trained model. The authors do so once, after the last round;
here, clients do after each of their rounds, from that model and V, on features in evaluation mode.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import (
    Algorithm,
    Batch,
    Context,
    Finished,
    LocalStage,
    Task,
    Weighting,
)
from flfast.algorithms.kit.last_layer import LinearHead, linear_head
from flfast.algorithms.kit.second_model import personal_part, prefixed, shared_part
from flfast.state.options import Count, NonNegativeInt, Positive
from flfast.state.tree import Tree, merge
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.prototypes import EXCLUDED
from flfast.zoo.algorithms.kit.simplex import projections, simplex

SCALE, VECTORS = ".scale", ".vectors"


def fedetf(  # noqa: PLR0913 - one parameter an option
    *,
    beta: Positive,
    cycles: NonNegativeInt,
    cycle_epochs: Count,
    vectors_lr: Positive,
    projection_lr: Positive,
    head: list[str] | None,
    weighting: Weighting,
    initial: Tree,
) -> Algorithm:
    """FedAvg below a fixed classifier, and personal last layers and classifiers."""
    top = linear_head(initial, head)
    like = initial["params"][top.names[0]]
    scale, etf = torch.full_like(like[0, 0], beta), simplex(len(like), like)

    def alone(broadcast: Tree) -> Tree:
        own = {SCALE: broadcast["scale"], VECTORS: etf}
        return merge(model_weights(broadcast), {"params": own})

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        w, personal = shared_part(done.weights["params"]), personal_part(done.weights["params"])
        change = ctx.change({"params": w, "buffers": done.weights["buffers"]})
        model = {name: change["params"][name] for name in initial["params"]}
        upload = {**change, "params": model, "scale": change["params"][SCALE]}
        return upload, {**done.weights, "params": {**w, **personal}}

    return Algorithm(
        name="fedetf",
        tasks=("classification",),
        weighting=weighting,
        server_state=lambda weights: {**weights, "scale": scale},
        client_state=alone,
        broadcast=lambda server: server,
        start=lambda broadcast, client: with_head(top, alone(broadcast)),
        facts=("labels",),
        stages=(
            LocalStage([*initial["params"], SCALE], loss=balanced),
            *personalisation(top, cycles, cycle_epochs, vectors_lr, projection_lr),
        ),
        finish=finish,
        personal=lambda broadcast, client: client,
        predict=predict,
    )


def personalisation(
    top: LinearHead, cycles: int, epochs: int, vectors_lr: float, projection_lr: float
) -> list[LocalStage]:
    """Stages that train V_k, then P_k, for `epochs` each, `cycles` times; P_k starts at P."""

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z = top.fixed_features(task, params, batch)
        logits = scaled(params, top.logits(personal_part(params), z), params[VECTORS])
        return task.mean(F.cross_entropy(logits, batch.targets, reduction="none"))

    by_vectors = LocalStage([VECTORS], epochs, loss=loss, lr=vectors_lr)
    by_projection = LocalStage(
        [*prefixed(dict.fromkeys(top.names))], epochs, loss=loss, lr=projection_lr
    )
    from_shared = by_vectors._replace(begin=lambda weights, ctx: with_head(top, weights))
    return [from_shared, by_projection, *[by_vectors, by_projection] * (cycles - 1)][: 2 * cycles]


def with_head(top: LinearHead, weights: Tree) -> Tree:
    """The weights, and a personal last layer that is the shared one."""
    head = {name: weights["params"][name] for name in top.names}
    return merge(weights, {"params": prefixed(head)})


def scaled(weights: Tree, outputs: Tensor, vectors: Tensor) -> Tensor:
    """Logits beta * V' f [B, C] of projections P(z) [B, C] with class vectors V [C, C]."""
    return weights[SCALE].to(outputs.dtype) * projections(outputs, vectors)


def balanced(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
    """h_k: cross-entropy with the client's class counts as priors."""
    logits = scaled(params, task.logits(params, batch), ctx.start["params"][VECTORS])
    counts = ctx.facts["labels"]
    priors = torch.where(counts > 0, counts.clamp(min=1).log(), EXCLUDED).to(logits.dtype)
    return task.mean(F.cross_entropy(logits + priors, batch.targets, reduction="none"))


def predict(task: Task, weights: Tree, batch: Batch) -> Tensor:
    """Logits beta * V_k' f [B, C] of a personal model."""
    return scaled(weights, task.fixed_logits(weights, batch), weights[VECTORS])
