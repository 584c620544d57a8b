"""FedEx-LoRA: factors of LoRA are averaged, and the frozen base gets what their product lacks.

Singhal, Ponkshe, Vepakomma: FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning
of Large Language Models. ACL 2025, section 4. https://arxiv.org/abs/2410.09432

    B := sum_k n_k / n * B_k,   A := sum_k n_k / n * A_k
    W := W + alpha / rank * (sum_k n_k / n * B_k A_k - B A)

The next model is exactly the mean of the clients' models. In the paper all clients weigh the same
(`uniform`), and all take part in each round, so that they get what the base lacks since the round
before. Here clients get all that it has got since the first round.
"""

from collections.abc import Sequence
from dataclasses import replace

from flfast.algorithms.contract import Algorithm, Uploads, Weighting
from flfast.state.tree import Tree, add, merge, sub
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.low_rank import (
    BASE,
    averaged_products,
    factor_pairs,
    folded,
    products,
)


def fedex_lora(*, weighting: Weighting, initial: Tree, members: Sequence[Tree]) -> Algorithm:
    """FedAvg of LoRA whose model is exactly the mean."""
    pairs = factor_pairs(initial, algorithm="fedex_lora")

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        new = add(server, model_weights(uploads.mean))
        lacking = sub(uploads.mean["products"], products(new["params"], pairs))
        return merge(new, {BASE: add(server[BASE], lacking)})

    averaged = averaged_products("fedex_lora", initial, members, weighting, factors=True)
    return replace(folded(averaged, members[0]), server_step=server_step)
