"""FedDisco: clients whose labels are far from the uniform distribution weigh less.

Ye, Xu, Wang, Xu, Chen, Wang: FedDisco: Federated Learning with Discrepancy-Aware Collaboration.
ICML 2023, section 4. https://arxiv.org/abs/2305.19229

    p_k ~ relu(n_k / N - a * d_k / D + b)
    n_k = training examples of client k,   d_k = KL(its label distribution, uniform distribution)

N and D are sums over the cohort; the authors' code has D for KL, too. A client does not know the
others, so a call before training adds up n_k and d_k, and the server broadcasts the sums. A weight
is at least 1e-9 * n_k / N, because all weights of a cohort could be zero.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Round
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, add
from flfast.state.weights import model_weights

FLOOR = 1e-9


def feddisco(*, a: NonNegative, b: NonNegative) -> Algorithm:
    """FedAvg with weights by size and label distribution; a = b = 0 is FedAvg."""

    def facts(ctx: Context) -> Tree:
        labels = ctx.facts["labels"].cpu()
        return {"examples": labels.sum(), "discrepancy": kl_from_uniform(labels)}

    def weight(done: Finished, ctx: Context) -> float:
        part = {name: float(leaf / ctx.server["sums"][name]) for name, leaf in facts(ctx).items()}
        distance = part["discrepancy"] if ctx.server["sums"]["discrepancy"] else 0.0
        return max(part["examples"] - a * distance + b, FLOOR * part["examples"])

    summing = Algorithm(
        name="feddisco's sums",
        broadcast=lambda server: {"params": {}, "buffers": {}},
        stages=(),
        facts=("labels",),
        finish=lambda done, ctx: ({"sums": facts(ctx)}, {}),
        parts={"sums": Part("sum", learned=False)},
    )

    def run(server: Tree, rnd: Round) -> Tree:
        server = {**server, **rnd.call(server, summing).mean}
        return add(server, rnd.call(server).mean)

    def server_state(weights: Tree) -> Tree:
        one = torch.ones((), dtype=torch.float64)
        return {**weights, "sums": {"examples": one, "discrepancy": one}}

    return Algorithm(
        name="feddisco",
        tasks=("classification",),
        weighting=weight,
        server_state=server_state,
        broadcast=lambda server: {**model_weights(server), "sums": server["sums"]},
        facts=("labels",),
        round=run,
        calls=(summing,),
    )


def kl_from_uniform(counts: Tensor) -> Tensor:
    """KL divergence [] of the distribution with these counts [C] from the uniform one, in nats.

    >>> kl_from_uniform(torch.tensor([5.0, 5.0])), kl_from_uniform(torch.tensor([9.0, 0.0]))
    (tensor(0.), tensor(0.6931))
    """
    # Exactly zero for equal counts: rounding errors would be divided by their sum D.
    ratios = counts * len(counts) / counts.sum()
    return torch.xlogy(ratios, ratios).mean().clamp(min=0)
