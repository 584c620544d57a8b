"""HetLoRA: clients train LoRA of different ranks, which are padded with zeros and averaged.

Cho, Liu, Xu, Fahrezi, Joshi: Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation
Models. EMNLP 2024, section 3. https://arxiv.org/abs/2401.06432

    A_k = the first r_k rows of A, B_k = the first r_k columns of B
    B := sum_k p_k pad(B_k),   A := sum_k p_k pad(A_k),   p_k = |B_k A_k|_F / sum_j |B_j A_j|_F

The norm is over all layers. Ranks are those of `adapter.rank=[...]`, one for each member of
`model=family`, the largest first. The paper's pruning of a client's rank is not there.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Context, Finished, Uploads
from flfast.algorithms.kit.low_rank import factor_pairs, products
from flfast.algorithms.kit.slices import averaged_slices
from flfast.state.tree import Tree, squared_norm, tree_map
from flfast.state.weights import model_weights


def hetlora(*, initial: Tree, members: Sequence[Tree]) -> Algorithm:
    """FedAvg of padded LoRA, whose weights are norms of the clients' products."""
    pairs = factor_pairs(initial, algorithm="hetlora")

    def weight(done: Finished, ctx: Context) -> float:
        return float(squared_norm(dict(products(done.weights["params"], pairs))) ** 0.5)

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        def padded_mean(old: Tensor, change: Tensor, share: Tensor) -> Tensor:
            return (old * share + change).to(old.dtype)

        before, change = model_weights(server), model_weights(uploads.mean)
        return {**server, **tree_map(padded_mean, before, change, uploads.mean["mask"])}

    base = averaged_slices("hetlora", initial, members)
    return replace(base, weight=weight if pairs else None, server_step=server_step)
