"""HetLoRA: clients train LoRA of different ranks, which are padded with zeros and averaged.

Cho, Liu, Xu, Fahrezi, Joshi: Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation
Models. EMNLP 2024, section 3. https://arxiv.org/abs/2401.06432

    A_k = the first r_k rows of A, B_k = the first r_k columns of B
    B := sum_k p_k pad(B_k),   A := sum_k p_k pad(A_k),   p_k = |B_k A_k|_F / sum_j |B_j A_j|_F

The norm is over all layers. A row or column that no client of the round has stays, where the
paper's would be 0 for good. Ranks are those of `adapter.rank=[...]`, one for each member of
`model=family`, the largest first. The paper's pruning of a client's rank is not there.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from flfast.algorithms.contract import Algorithm, Context, Finished, Uploads
from flfast.algorithms.kit.slices import averaged_slices
from flfast.state.tree import Tree, add, squared_norm
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.low_rank import factor_pairs, products


def hetlora(*, initial: Tree, members: Sequence[Tree]) -> Algorithm:
    """FedAvg of padded LoRA, whose weights are norms of the clients' products."""
    pairs = factor_pairs(initial, algorithm="hetlora")

    def weight(done: Finished, ctx: Context) -> float:
        return float(squared_norm(dict(products(done.weights["params"], pairs))) ** 0.5)

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean, shares = uploads.mean, uploads.mean["mask"]["params"]
        new = add(server, model_weights(mean))
        for name in (*pairs, *pairs.values()):
            old, share = server["params"][name], shares[name]
            padded = (old * share + mean["params"][name]).to(old.dtype)
            new["params"][name] = torch.where(share > 0, padded, old)
        return new

    base = averaged_slices("hetlora", initial, members)
    return replace(base, weighting=weight if pairs else base.weighting, server_step=server_step)
