"""Ditto: beside FedAvg every client trains a model of its own, held near the server's.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021, Algorithm 1. https://arxiv.org/abs/2012.04221

    w_k := w_k - eta * grad F_k(w_k)
    v_k := v_k - eta * (grad F_k(v_k) + lam * (v_k - w[t]))

Both take the same steps on the same batches, as in the authors' code. The paper starts every v_k
at w[0]; here a client that comes late starts at the server's model of then. The paper weighs
clients alike (`uniform`). Clipping by norm sees both gradients together.
"""

import logging

from torch import Tensor

from flfast.algorithms.algorithm import Algorithm, Context, Finished, Task, Weighting
from flfast.algorithms.second_model import personal_part, separated, shared_part, with_personal
from flfast.datamodules.batches import Batch
from flfast.options import NonNegative
from flfast.state.tree import Tree, squared_norm, sub

log = logging.getLogger(__name__)


def ditto(*, lam: NonNegative, weighting: Weighting) -> Algorithm:
    """FedAvg, and personal models with a proximal objective; lam = 0 trains those alone.

    Args:
        lam: strength of the proximal term, >= 0; the paper's lambda.
        weighting: `samples` or `uniform`.
    """
    if lam == 0:
        log.warning("algorithm.lam=0 makes Ditto's personal models those of local training")

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        personal = personal_part(params)
        anchor = shared_part(ctx.start["params"])
        trained = {name: personal[name] for name in anchor}
        proximal = lam / 2 * squared_norm(sub(trained, anchor))
        return task(params, batch) + task(personal, batch) + proximal

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return separated(done.weights)

    return Algorithm(
        name="ditto",
        weighting=weighting,
        client_state=lambda broadcast: {k: broadcast[k] for k in ("params", "buffers")},
        start=with_personal,
        loss=loss,
        finish=finish,
        personal=lambda broadcast, client: client,
    )
