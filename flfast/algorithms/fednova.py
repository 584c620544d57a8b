"""FedNova: normalised averaging; taking more local steps does not add weight.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization. NeurIPS 2020. https://arxiv.org/abs/2007.07481

    d_k = (w[t] - w_k[t+1]) / (lr * |a_k|_1)
    w[t+1] = w[t] - tau_eff * sum_k p_k * lr * d_k,   tau_eff = sum_k p_k * |a_k|_1

a_k holds the coefficients of the local gradients in client k's update: 1 for plain SGD, and
(1 - momentum^(steps left)) / (1 - momentum) with momentum. Buffers are averaged.
"""

from typing import Literal

import torch

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads, Weighting
from flfast.algorithms.kit.degenerate import degenerate
from flfast.algorithms.kit.local_sgd import gradient_weight_of_sgd
from flfast.state.options import BelowOne, Count
from flfast.state.tree import Tree, add, scaled, tree_map


def fednova(
    *,
    weighting: Weighting,
    momentum: BelowOne | None,
    nesterov: bool | None,
    local_steps: Count | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """Normalised averaging; equal to FedAvg if all clients take the same number of local steps.

    `local_optimizer_state` must be `reset`, because a_k assumes that momentum starts at zero.
    """
    coefficient_sum = gradient_weight_of_sgd("fednova", momentum=momentum, nesterov=nesterov)
    same = local_steps is not None
    degenerate(same, f"algorithm=fednova with local_steps={local_steps} is FedAvg")

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        norm = coefficient_sum(done.num_steps)
        change, steps = ctx.change(done.weights), torch.tensor(norm, dtype=torch.float64)
        return {**change, "params": scaled(change["params"], 1 / norm), "steps": steps}, ctx.client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean, tau = uploads.mean, uploads.mean["steps"]
        step = tree_map(lambda d: tau * d, mean["params"])
        return add(server, {"params": step, "buffers": mean["buffers"]})

    return Algorithm(
        name="fednova",
        weighting=weighting,
        finish=finish,
        parts={"params": Part(), "steps": Part(learned=False)},  # a direction is no change
        server_step=server_step,
    )
