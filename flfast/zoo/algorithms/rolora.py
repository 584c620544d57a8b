"""RoLoRA: clients train factors B of LoRA in odd rounds, and factors A in even ones.

Chen, Guo, Ju, Dalal, Zhu, Khisti: Robust Federated Finetuning of LLMs via Alternating
Optimization of LoRA. NeurIPS 2025, Algorithm 1. https://arxiv.org/abs/2502.01755

    odd t:   B_k := SGD on F_k(A, B),   B := sum_k n_k / n * B_k
    even t:  A_k := SGD on F_k(A, B),   A := sum_k n_k / n * A_k

So the mean of products is the product of means. Uploads have one factor. In the paper clients
get one, too, and take part in every round; here they get both, as they may have missed rounds.
"""

from collections.abc import Collection
from dataclasses import replace

from flfast.algorithms.contract import (
    Algorithm,
    Context,
    Finished,
    LocalStage,
    Round,
    Weighting,
)
from flfast.state.tree import Tree, add, without
from flfast.state.weights import select_weights
from flfast.zoo.algorithms.kit.low_rank import factor_pairs


def rolora(*, weighting: Weighting, initial: Tree) -> Algorithm:
    """FedAvg of one factor of LoRA at a time; other trained weights are averaged in each round."""
    pairs = factor_pairs(initial, algorithm="rolora")
    first = _phase("rolora", pairs.keys(), weighting, initial)
    second = _phase("rolora's A", pairs.values(), weighting, initial)

    def run(server: Tree, rnd: Round) -> Tree:
        return add(server, rnd.call(server, None if rnd.number % 2 else second).mean)

    return replace(first, round=run, calls=(second,))


def _phase(name: str, fixed: Collection[str], weighting: Weighting, initial: Tree) -> Algorithm:
    """FedAvg without some parameters, which keep their values."""
    kept = select_weights(initial, {*fixed}.__contains__)

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return ctx.change(without(done.weights, kept)), ctx.client

    stage = LocalStage(trains=[n for n in initial["params"] if n not in fixed])
    return Algorithm(name=name, weighting=weighting, stages=(stage,), finish=finish)
