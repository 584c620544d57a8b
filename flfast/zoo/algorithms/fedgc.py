"""FedGC: a shared body below the clients' own heads, whose classes the server drives apart.

Niu, Deng: Federated Learning for Face Recognition with Gradient Correction. AAAI 2022,
Algorithm 1. https://arxiv.org/abs/2112.07246

    (b_k, W_k) := SGD on F_k(b, W_k), with the softmax over client k's classes
    b := sum_k n_k / n * b_k,   W := W - server_lr * grad Reg(W)
    Reg(W) = sum_k sum_c -log(e^<w_c, w_c> / (e^<w_c, w_c> + sum_j,d e^<w_jd, w_c>))

Row w_kc of W_k is client k's embedding of class c, and (j, d) are the classes of other clients.
The vectors w_c are constants. Algorithm 1 has server_lr = lambda * lr. Reg is PFLlib's, since the
paper's equations could not be read. There clients share no class; for those that do, PFLlib's w_c
is the mean of w_kc over the clients with class c, and j runs over those without it. PFLlib's heads
have no bias; here clients keep theirs as trained. Reg is over all clients that have uploaded, with
their last heads, and each head is corrected once, when the server sends it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract.algorithm import Algorithm, Weighting
from flfast.algorithms.contract.client import Context, Finished, Task
from flfast.algorithms.contract.records import Record, Records
from flfast.algorithms.contract.uploads import Part
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.split import split
from flfast.datamodules.batches import Batch
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, add, merge, part_of, without
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.prototypes import EXCLUDED

CLASSES = "classes"
"""Name of the mask [C]: 1 for the client's classes."""


def fedgc(
    *, server_lr: NonNegative, head: list[str] | None, weighting: Weighting, initial: Tree
) -> Algorithm:
    """FedPer among each client's own classes, with a server that corrects the heads."""
    top, (kept, _) = linear_head(initial, head), split(initial, head)
    name = top.names[0]
    like = kept["params"][name][:, 0]

    def apart(weights: Tree) -> Tree:
        return {**without(model_weights(weights), kept), "head": part_of(weights, kept)}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return {
            **apart(ctx.change(done.weights)),
            CLASSES: (ctx.facts["labels"] > 0).to(like),
        }, ctx.client

    return Algorithm(
        name="fedgc",
        tasks=("classification",),
        weighting=weighting,
        evaluate_server=False,
        facts=("labels",),
        broadcast=lambda server: without(server, kept),
        send=lambda server, records, clients: corrected(records, clients, name, server_lr),
        record=Record(
            lambda server, uploads: {
                **add(uploads.sent, uploads.rows["head"]),
                CLASSES: uploads.rows[CLASSES],
            },
            initial=lambda server: {**part_of(server, kept), CLASSES: torch.ones_like(like)},
        ),
        loss=loss,
        finish=finish,
        parts={"head": Part("rows"), CLASSES: Part("rows", learned=False)},
        personal=personal,
        predict=predict,
    )


def corrected(records: Records, clients: Sequence[int], name: str, lr: float) -> Tree:
    """The clients' records with their embeddings a step away from those of other clients.

    Args:
        records: with embeddings w [C, D] among `params`, and `classes` [C].
        clients: any; those without a record stay as they are.
        name: name of w.
        lr: length of the step, in units of the gradient.
    """
    known, rows = records.known(), records[records.known()]
    steps = lr * repulsion(rows["params"][name], rows[CLASSES])
    steps = torch.cat([steps, steps.new_zeros(1, *steps.shape[1:])])
    of_client, sent = {client: step for step, client in enumerate(known)}, records[clients]
    w = sent["params"][name]
    moved = w - steps[[of_client.get(client, -1) for client in clients]].to(w.dtype)
    return merge(sent, {"params": {name: moved}})


def repulsion(embeddings: Tensor, known: Tensor) -> Tensor:
    """Gradient of sum_k sum_c -log(e^<w_c, w_c> / (e^<w_c, w_c> + sum e^<w_jd, w_c>)) in w_jd.

    Classes c are those of client k, and the inner sum is over the classes d of all clients j
    without c. w_c, the mean of w_kc over the clients with c, is a constant.

    Args:
        embeddings: w [K, C, D]; the ones of classes that a client lacks count for nothing.
        known: 1 for classes of a client, else 0 [K, C].

    Returns:
        float64 [K, C, D], zero for classes that a client lacks.
    """
    w, has = embeddings.double(), known.double()
    owners = has.sum(0)
    means = (has.unsqueeze(2) * w).sum(0) / owners.clamp(min=1).unsqueeze(1)
    pairs = (1 - has).T.unsqueeze(2) * has  # whether w_jd repels w_c [C, K, C]
    others = torch.einsum("kjd,cd->ckj", w, means).where(pairs > 0, -torch.inf).flatten(1)
    own = means.square().sum(1, keepdim=True)
    shares = torch.cat([own, others], 1).softmax(1)[:, 1:].unflatten(1, has.shape)
    return torch.einsum("c,ckj,cd->kjd", owners, shares, means)


def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
    """Cross-entropy of a softmax over the client's classes; it reads the fact `labels`."""
    logits = task.logits(params, batch).where(ctx.facts["labels"] > 0, EXCLUDED)
    return task.mean(F.cross_entropy(logits, batch.targets, reduction="none"))


def personal(download: Tree, client: Tree) -> Tree:
    """The downloaded model, with its `classes` for `predict`."""
    return merge(model_weights(download), {"buffers": {CLASSES: download[CLASSES]}})


def predict(task: Task, weights: Tree, batch: Batch) -> Tensor:
    """Logits of the model [B, C]; those of other classes are lower than all of the client's."""
    logits = task.logits(weights, batch)
    return logits.where(weights[CLASSES] > 0, logits.amin(1, keepdim=True) - 1)
