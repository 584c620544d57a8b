"""FLoRA: the frozen base gets the mean of the clients' products of LoRA; factors start anew.

Wang, Shen, He, Sun, Wang, Lyu, Li: FLoRA: Federated Fine-Tuning Large Language Models with
Heterogeneous Low-Rank Adaptations. NeurIPS 2024, section 3. https://arxiv.org/abs/2409.05976

    W := W + alpha / rank * sum_k n_k / n * B_k A_k;   A := random, B := 0

The sum of products is that of the paper's stacked factors. A is drawn as at first, for all clients
alike; in the authors' code each client draws its own. Ranks may differ (`adapter.rank=[...]`, one
for each member of `model=family`, the largest first). Clients get all that the base has got since
the first round, as they may have missed rounds; in the paper they all take part in each round, and
get the stacked factors of the round before.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Uploads, Weighting
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, add, merge
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.low_rank import BASE, averaged_products, factor_pairs, folded


def flora(*, weighting: Weighting, initial: Tree, members: Sequence[Tree], seed: int) -> Algorithm:
    """The frozen base learns, by products of LoRA."""
    pairs = factor_pairs(initial, algorithm="flora")

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        rng = torch_generator(seed, "factors", uploads.round)
        factors = {}
        for a, b in pairs.items():
            factors[a] = _drawn(server["params"][a], rng)
            factors[b] = torch.zeros_like(server["params"][b])
        new = merge(add(server, model_weights(uploads.mean)), {"params": factors})
        return merge(new, {BASE: add(server[BASE], uploads.mean["products"])})

    averaged = averaged_products("flora", initial, members, weighting, factors=False)
    return replace(folded(averaged, members[0]), server_step=server_step)


def _drawn(a: Tensor, rng: torch.Generator) -> Tensor:
    """Values for A [rank, in, ...], uniform in +-1 / sqrt(in * kernel), as those of peft."""
    drawn = torch.rand(a.shape, generator=rng) * 2 - 1
    return (drawn / a[0].numel() ** 0.5).to(a)
