"""FedCAC: parameters that matter to a client are shared with clients whose masks are alike.

Wu, Liu, Niu, Zhu, Tang: Bold but Cautious: Unlocking the Potential of Personalized Federated
Learning through Cautiously Aggressive Collaboration. ICCV 2023. https://arxiv.org/abs/2309.11103

    M_k = 1 where |(w_k - s_k) * w_k| is among the largest tau of a tensor
    O_kj = 1 - |M_k - M_j|_1 / (2 * |M_k|_1)
    C_k = {k} and all j with O_kj >= mean O + t / beta * (max O - mean O)
    s_k = M_k * (mean of w_j over C_k) + (1 - M_k) * w,   w = mean of the round's w_j
    w_k = local training from s_k

j runs over all clients that have uploaded, with their last models and masks. s_k is k's personal
model; the server computes it, where the authors' code sends both means. Buffers are those of w.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm, Weighting
from flfast.algorithms.contract.client import Context, Finished
from flfast.algorithms.contract.records import Record, Records
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.algorithms.kit.model_groups import equal_models, mean_of
from flfast.state.near_ties import EQUAL
from flfast.state.options import Positive, UpToOne
from flfast.state.tree import Tree, add, leaves, tree_map
from flfast.state.weights import model_weights

ROWS = Part("rows")
ROUNDING = 8.0


def fedcac(*, tau: UpToOne, beta: Positive, weighting: Weighting) -> Algorithm:
    """FedAvg, with the critical parameters of each client from clients that are like it."""

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        known = records.known()
        sent, rows = equal_models(server, len(clients)), records[known]
        strictness = float(server["rounds"]) / beta
        by_client = dict(zip(known, collaboration(rows["mask"], strictness), strict=True))
        none = torch.zeros(len(known), dtype=torch.float64)
        weights = torch.stack([by_client.get(k, none) for k in clients])  # [K, n]

        def mixed(shared: Tensor, mask: Tensor, models: Tensor) -> Tensor:
            mean = torch.tensordot(weights, models.double(), dims=1).to(shared.dtype)
            return torch.where(mask.bool(), mean, shared)

        masks = records[clients]["mask"]
        return {**sent, "params": tree_map(mixed, sent["params"], masks, rows["params"])}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        before, after = ctx.server["params"], done.weights["params"]
        masks = tree_map(lambda old, new: critical(new - old, new, tau), before, after)
        return {**ctx.change(done.weights), "mask": masks}, ctx.client

    def models(server: Tree, uploads: Uploads) -> Tree:
        return {**uploads.rows, **add(uploads.sent, model_weights(uploads.rows))}

    def initial_record(server: Tree) -> Tree:
        return {**model_weights(server), "mask": no_masks(server["params"])}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = mean_of(model_weights(models(server, uploads)), uploads.weights)
        return {**server, **mean, "rounds": server["rounds"] + 1}

    return Algorithm(
        name="fedcac",
        weighting=weighting,
        server_state=lambda weights: {**weights, "rounds": torch.tensor(0)},
        broadcast=lambda server: {"params": {}, "buffers": {}},
        send=send,
        record=Record(models, initial_record),
        finish=finish,
        parts={"params": ROWS, "buffers": ROWS, "mask": Part("rows", learned=False)},
        server_step=server_step,
        personal=lambda broadcast, client: model_weights(broadcast),
    )


def critical(change: Tensor, value: Tensor, share: float) -> Tensor:
    """Where |change * value| is among the largest of a tensor, and not zero; uint8.

    `change` is by local training, and `value` is after it. `share` is of the elements.
    """
    # Biases before BatchNorm change by rounding errors only, which differ between engines.
    rounding = ROUNDING * torch.finfo(value.dtype).eps * value.abs()
    sensitivity = torch.where(change.abs() > rounding, (change * value).abs(), 0)
    num = int(share * sensitivity.numel())
    if num == 0:
        return torch.zeros_like(sensitivity, dtype=torch.uint8)
    smallest = sensitivity.flatten().topk(num).values[-1]
    return ((sensitivity >= (1 - EQUAL) * smallest) & (sensitivity > 0)).to(torch.uint8)


def no_masks(params: Tree) -> Tree:
    """Masks of a client that has no critical parameters yet."""
    return tree_map(lambda leaf: torch.zeros_like(leaf, dtype=torch.uint8), params)


def collaboration(masks: Tree, strictness: float) -> Tensor:
    """Weights of n clients in each other's means [n, n], in float64; rows sum to one.

    Each row has equal weights for the client, and for those whose masks overlap enough with its
    own: the mean overlap of all pairs, or more.

    Args:
        masks: masks of critical parameters, each leaf [n, ...].
        strictness: share of the way from the mean overlap to the largest one.
    """
    flat = torch.cat([leaf.flatten(1).double() for leaf in leaves(masks)], dim=1)
    sizes = flat.sum(1, keepdim=True)
    differences = sizes + sizes.T - 2 * flat @ flat.T
    overlaps = 1 - differences / (2 * sizes.clamp(min=1))
    own = torch.eye(len(flat), dtype=torch.bool)
    others = overlaps[~own]
    chosen = own
    if len(others):
        enough = others.mean() + strictness * (others.max() - others.mean())
        chosen = own | (overlaps >= enough - EQUAL)
    return chosen / chosen.sum(1, keepdim=True).double()
