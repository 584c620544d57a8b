"""Ditto: FedAvg, and personal models that a proximal term keeps near the server's model.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021, Algorithm 1. https://arxiv.org/abs/2012.04221

    w_k := w_k - eta * grad F_k(w_k)
    v_k := v_k - eta * (grad F_k(v_k) + lam * (v_k - w[t]))

Both models take their steps on the same batches, as in the authors' code. In the paper every v_k
starts at w[0], here at the broadcast of the client's first round. The paper weighs all clients the
same (`uniform`). Clipping by norm takes the norm over both gradients.
"""

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.second_model import (
    personal_part,
    shared_part,
    upload_shared,
    with_personal,
)
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, squared_norm, sub
from flfast.state.weights import model_weights


def ditto(*, lam: NonNegative, weighting: Weighting) -> Algorithm:
    """FedAvg, and personal models with a proximal term; lam = 0 makes them local training."""

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        personal = personal_part(params)
        anchor = shared_part(ctx.start["params"])
        trained = {name: personal[name] for name in anchor}
        proximal = lam / 2 * squared_norm(sub(trained, anchor))
        return task(params, batch) + task(personal, batch) + proximal

    return Algorithm(
        name="ditto",
        weighting=weighting,
        client_state=model_weights,
        start=with_personal,
        loss=loss,
        finish=upload_shared,
        personal=lambda broadcast, client: client,
    )
