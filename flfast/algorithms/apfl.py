"""APFL: a client's model is a mixture of its own and its copy of the server's.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. 2020, Algorithm 1; the authors'
code mixes outputs, and moves alpha in a round's first step only. https://arxiv.org/abs/2003.13461

    w_k := w_k - eta * grad F_k(w_k)
    v_k := v_k - eta * alpha_k * grad F_k(m_k),   m_k = alpha_k * v_k + (1 - alpha_k) * w_k
    alpha_k := alpha_k - eta * <v_k - w_k, grad F_k(m_k)>,   if it adapts, kept in [0, 1]
"""

import logging

import torch
from torch import Tensor

from flfast.algorithms.algorithm import Algorithm, Context, Finished, Task, Weighting
from flfast.algorithms.second_model import personal_part, separated, with_personal
from flfast.datamodules.batches import Batch
from flfast.options import Fraction
from flfast.state.tree import Tree

ALPHA = "apfl/alpha"
log = logging.getLogger(__name__)


def apfl(*, alpha: Fraction, adaptive: bool, weighting: Weighting) -> Algorithm:
    """FedAvg, and personal models mixed from local and federated ones.

    Args:
        alpha: share of the client's own model, at first where it adapts.
        adaptive: whether local training learns alpha, too.
        weighting: `samples`, or `uniform` as in the paper.
    """
    if not adaptive and alpha in {0, 1}:
        meaning = "server's model" if alpha == 0 else "model of local training"
        log.warning("algorithm.alpha=%g makes APFL's personal model the %s", alpha, meaning)

    def client_state(broadcast: Tree) -> Tree:
        own = {kind: broadcast[kind] for kind in ("params", "buffers")}
        return {**own, "alpha": torch.tensor(float(alpha))}

    def start(broadcast: Tree, client: Tree) -> Tree:
        joint = with_personal(broadcast, client)
        learned = {ALPHA: client["alpha"]} if adaptive else {}
        return {**joint, "params": {**joint["params"], **learned}}

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        share: Tensor = params[ALPHA] if adaptive else ctx.client["alpha"]
        if adaptive:
            share.detach().copy_(share.detach().clamp(0, 1))
        own = personal_part(params)
        mixed = mixture(share, own, {n: p.detach() for n, p in params.items() if n in own})
        return task(params, batch) + task({**own, **mixed}, batch)

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, own = separated(done.weights)
        share = upload["params"].pop(ALPHA, ctx.client["alpha"])
        return upload, {**own, "alpha": share.clamp(0, 1)}

    def personal(broadcast: Tree, client: Tree) -> Tree:
        mixed = mixture(client["alpha"], client["params"], broadcast["params"])
        return {"params": mixed, "buffers": client["buffers"]}

    return Algorithm(
        name="apfl",
        weighting=weighting,
        client_state=client_state,
        start=start,
        loss=loss,
        finish=finish,
        personal=personal,
    )


def mixture(share: Tensor, own: Tree, federated: Tree) -> Tree:
    """`share` of the own parameters, the rest of the federated ones."""
    return {name: share * own[name] + (1 - share) * p for name, p in federated.items()}
