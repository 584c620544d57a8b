"""AFL: the model is trained for the worst mixture of the clients' data.

Mohri, Sivek, Suresh: Agnostic Federated Learning. ICML 2019, Figure 2.
https://arxiv.org/abs/1902.00146

    w := sum_k lambda_k * w_k / sum_k lambda_k,   w_k = local training from w
    lambda := the nearest point of the simplex to lambda + lambda_lr * (F_1(w), ..., F_N(w))

The paper has all clients in every round, and one gradient for local training. Here sums are over
the cohort, and other lambda_k move with the projection only. In means they are at least 1e-10.
"""

from collections.abc import Sequence

import torch

from flfast.algorithms.contract import Algorithm, LocalStage, Part, Records, Uploads
from flfast.algorithms.kit.measures import LOSS, mean_loss
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, add
from flfast.zoo.algorithms.kit.nearest_mixture import nearest_mixture

EPS = 1e-10


def afl(*, lambda_lr: NonNegative, num_clients: int) -> Algorithm:
    """FedAvg whose weights follow the clients' losses."""

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        return {"share": server["lambda"][list(clients)]}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        steps = lambda_lr * uploads.rows["loss"]
        moved = server["lambda"].index_add(0, uploads.clients, steps)
        return {**add(server, uploads.mean), "lambda": nearest_mixture(moved)}

    equal = torch.full((num_clients,), 1 / num_clients, dtype=torch.float64)
    return Algorithm(
        name="afl",
        weighting=lambda done, ctx: max(float(ctx.server["share"]), EPS),
        server_state=lambda weights: {**weights, "lambda": equal},
        send=send,
        facts=("examples",),
        stages=(LOSS, LocalStage()),
        finish=lambda done, ctx: (
            {**ctx.change(done.weights), "loss": mean_loss(ctx)},
            ctx.client,
        ),
        parts={"loss": Part("rows", learned=False)},
        server_step=server_step,
    )
