"""FedGELA: a fixed simplex classifier, which each client scales by its own label distribution.

Fan, Zhang, Yao, Han, Zhang, Wang: Federated Learning with Bilateral Curation for Partially
Class-Disjoint Data. NeurIPS 2023. https://arxiv.org/abs/2405.18972

    f = g / |g|,   V = the simplex [C, C],   Phi_kc = C * n_kc / n_k
    h_k(w) = mean over examples of CE(Phi_k * (V' f) / tau, y),   elementwise product

g are the outputs of the model [C], and client k has n_kc of its n_k examples in class c. Logits of
classes that it lacks are 0. The server's model gives g, whose largest component is the predicted
class with V; its loss in evaluation is not that of f. A client predicts with the model that it
trained last, and Phi_k. The authors' features have more dimensions, and an affine BatchNorm in the
place of length one, which is the paper's bound; their gradients are clipped to 20 (`clip_norm`).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Task, Weighting
from flfast.algorithms.kit.last_layer import last_weight
from flfast.state.options import Positive
from flfast.state.tree import Tree, merge
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.simplex import projections, simplex

PHI = ".phi"


def fedgela(*, tau: Positive, weighting: Weighting, initial: Tree) -> Algorithm:
    """FedAvg below a fixed classifier, scaled by the class counts of each client."""
    num_classes = len(last_weight(initial, algorithm="fedgela"))

    def logits(outputs: Tensor, phi: Tensor) -> Tensor:
        found = projections(outputs, simplex(num_classes, outputs))
        return phi.to(found.dtype) * found / tau

    def phi_of(ctx: Context) -> Tensor:
        counts = ctx.facts["labels"]
        return num_classes * counts / counts.sum()

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        found = logits(task.logits(params, batch), phi_of(ctx))
        return task.mean(F.cross_entropy(found, batch.targets, reduction="none"))

    def with_phi(weights: Tree, phi: Tensor) -> Tree:
        return merge(model_weights(weights), {"buffers": {PHI: phi}})

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return ctx.change(done.weights), with_phi(done.weights, phi_of(ctx))

    return Algorithm(
        name="fedgela",
        tasks=("classification",),
        weighting=weighting,
        client_state=lambda broadcast: with_phi(broadcast, torch.ones(num_classes).double()),
        facts=("labels",),
        loss=loss,
        finish=finish,
        personal=lambda broadcast, client: client,
        predict=lambda task, w, batch: logits(task.fixed_logits(w, batch), w[PHI]),
    )
