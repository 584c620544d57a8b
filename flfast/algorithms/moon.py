"""MOON: local features are drawn to the server model's and away from the client's last ones.

Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021, equations 3 and 4, Algorithm 1.
https://arxiv.org/abs/2103.16257

    l_con = -log(exp(s_glob / tau) / (exp(s_glob / tau) + exp(s_prev / tau)))
    h_k(w) = F_k(w) + mu * l_con,   s_x = cosine(z, z_x),   z = features before the head

The model is taken as it is: the paper adds a projection head of two layers to it. Both other
models are in evaluation. In a client's first round z_prev is z_glob, whose gradients cancel.
"""

import logging

from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.algorithm import Algorithm, Context, Finished, Task, Weighting
from flfast.algorithms.split import head_layer
from flfast.datamodules.batches import Batch
from flfast.options import NonNegative, Positive
from flfast.state.tree import Tree

log = logging.getLogger(__name__)


def moon(
    *,
    mu: NonNegative,
    tau: Positive,
    head: list[str] | None,
    weighting: Weighting,
    initial: Tree,
) -> Algorithm:
    """FedAvg with a model-contrastive local objective; mu = 0 is FedAvg.

    Args:
        mu: strength of the contrastive term, >= 0.
        tau: temperature, > 0.
        head: layers of the head, whose input are the features; None is the last layer.
        weighting: `samples` or `uniform`.
        initial: weights before round 1.
    """
    layer = head_layer(initial, head)
    if mu == 0:
        log.warning("algorithm.mu=0 makes MOON FedAvg")

    def contrastive(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z, loss = task.features(params, batch, layer=layer)
        drawn, pushed = (
            F.cosine_similarity(z, task.fixed_features(flat(weights), batch, layer=layer)) / tau
            for weights in (ctx.start, ctx.client)
        )
        return loss + mu * task.mean(F.softplus(pushed - drawn))

    def flat(weights: Tree) -> Tree:
        return {**weights["params"], **weights["buffers"]}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return done.weights, done.weights

    return Algorithm(
        name="moon",
        weighting=weighting,
        client_state=lambda broadcast: {k: broadcast[k] for k in ("params", "buffers")},
        loss=contrastive,
        finish=finish,
    )
