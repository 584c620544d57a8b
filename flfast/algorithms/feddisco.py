"""FedDisco: clients whose labels are far from the uniform distribution weigh less.

Ye, Xu, Wang, Xu, Chen, Wang: FedDisco: Federated Learning with Discrepancy-Aware Collaboration.
ICML 2023, section 4. https://arxiv.org/abs/2305.19229

    p_k ~ relu(n_k / N - a * d_k / D + b)
    n_k = training examples of client k,   d_k = KL(its label distribution, uniform distribution)

N and D are sums over the cohort; the authors' code has D for KL, too. A client does not know the
others, so here N and D are those of the previous round: clients upload n_k and d_k, and the server
broadcasts the sums. If all clients take part in every round, only round 1 differs: it is FedAvg. A
weight is at least 1e-9 * n_k / N, because all weights of a cohort could be zero.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import Context, Finished
from flfast.algorithms.contract.uploads import Part
from flfast.algorithms.kit.degenerate import degenerate
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, add
from flfast.state.weights import model_weights

FLOOR = 1e-9


def feddisco(*, a: NonNegative, b: NonNegative) -> Algorithm:
    """FedAvg with weights by size and label distribution; a = b = 0 is FedAvg.

    Args:
        a: strength of the discrepancy, >= 0.
        b: added to every weight, >= 0.
    """
    degenerate(a == 0 and b == 0, "algorithm.a=0 with algorithm.b=0 turns FedDisco into FedAvg")

    def weight(done: Finished, ctx: Context) -> float:
        examples, discrepancy = (float(ctx.server["sums"][n]) for n in ("examples", "discrepancy"))
        share = done.num_examples / (examples or 1.0)
        if not examples:  # round 1
            return share
        distance = float(kl_from_uniform(ctx.facts["labels"])) / (discrepancy or 1.0)
        return max(share - a * distance + b, FLOOR * share)

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        discrepancy = kl_from_uniform(ctx.facts["labels"]).cpu()
        examples = torch.tensor(done.num_examples, dtype=torch.float64)
        sums = {"examples": examples, "discrepancy": discrepancy}
        return {**ctx.change(done.weights), "sums": sums}, ctx.client

    def server_state(weights: Tree) -> Tree:
        zero = torch.zeros((), dtype=torch.float64)
        return {**weights, "sums": {"examples": zero, "discrepancy": zero}}

    return Algorithm(
        name="feddisco",
        tasks=("classification",),
        weight=weight,
        server_state=server_state,
        broadcast=lambda server: {**model_weights(server), "sums": server["sums"]},
        facts=("labels",),
        finish=finish,
        parts={"sums": Part("sum", learned=False)},
        server_step=lambda s, up: {**add(s, model_weights(up.mean)), "sums": up.mean["sums"]},
    )


def kl_from_uniform(counts: Tensor) -> Tensor:
    """KL divergence [] of the distribution with these counts [C] from the uniform one, in nats.

    >>> kl_from_uniform(torch.tensor([5.0, 5.0])), kl_from_uniform(torch.tensor([9.0, 0.0]))
    (tensor(0.), tensor(0.6931))
    """
    # Exactly zero for equal counts: rounding errors would be divided by their sum D.
    ratios = counts * len(counts) / counts.sum()
    return torch.xlogy(ratios, ratios).mean().clamp(min=0)
