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
from torch import Tensor

from flfast.algorithms.contract import Algorithm, LocalStage, Part, Records, Uploads
from flfast.algorithms.kit.degenerate import degenerate
from flfast.algorithms.kit.measures import LOSS, mean_loss
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, add

EPS = 1e-10


def afl(*, lambda_lr: NonNegative, num_clients: int) -> Algorithm:
    """FedAvg whose weights follow the clients' losses."""
    degenerate(
        lambda_lr == 0, "algorithm.lambda_lr=0 turns AFL into FedAvg with weighting=uniform"
    )

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        return {"share": server["lambda"][list(clients)]}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        steps = lambda_lr * uploads.rows["loss"]
        moved = server["lambda"].index_add(0, uploads.clients, steps)
        return {**add(server, uploads.mean), "lambda": project(moved)}

    equal = torch.full((num_clients,), 1 / num_clients, dtype=torch.float64)
    return Algorithm(
        name="afl",
        weight=lambda done, ctx: max(float(ctx.server["share"]), EPS),
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


def project(values: Tensor) -> Tensor:
    """The nearest point [N] of the probability simplex, in Euclidean distance.

    >>> project(torch.tensor([0.5, 1.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    # Adding a number to all values changes nothing, but 1e17 + 1 would be rounded to 1e17.
    values = values - values.max()
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(values) + 1)
    # NaN exceeds nothing; it stays NaN.
    num_positive = max(int((ordered > excess).sum()), 1)
    return (values - excess[num_positive - 1]).clamp(min=0)
