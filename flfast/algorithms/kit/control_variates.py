"""Control variates, of SCAFFOLD, FedGAMMA and FedLESAM-S.

`scaffold` has paper and equations.
"""

from collections.abc import Callable

import torch

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads
from flfast.state.tree import Tree, add, scaled, tree_map, zeros
from flfast.state.weights import model_weights


def control_variates(
    name: str, gradient_weight: Callable[[int], float], *, server_lr: float
) -> Algorithm:
    """SCAFFOLD under a name; all clients weigh the same."""

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        c_k, c = ctx.client["control"], ctx.server["control"]
        # In parentheses: the difference is the same in all steps, and the fused engine hoists it.
        return {name: grads[name] + (c[name] - c_k[name]) for name in grads if name in c}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        c_k, c, change = ctx.client["control"], ctx.server["control"], ctx.change(done.weights)
        if not ctx.lr:  # steps of length zero give no estimate of the gradient
            return {**change, "control": zeros(c)}, ctx.client
        scale = 1 / (gradient_weight(done.num_steps) * float(ctx.lr))
        # c_k - c_k+ = c - (x - y) / (K * lr) is common to upload and state, and computed once.
        moved = change["params"]
        decrease = tree_map(lambda c, d: torch.add(c, d, alpha=scale), c, moved)
        control = tree_map(lambda d, c: c - d, decrease, c_k)  # over shared parameters
        return {**change, "control": decrease}, {"control": control}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean, share = uploads.mean, uploads.num_clients / uploads.population
        params, control = scaled(mean["params"], server_lr), scaled(mean["control"], -share)
        return add(server, {**mean, "params": params, "control": control})

    return Algorithm(
        name=name,
        weighting="uniform",
        server_state=lambda weights: {**weights, "control": zeros(weights["params"])},
        client_state=lambda broadcast: {"control": zeros(broadcast["params"])},
        broadcast=lambda server: {**model_weights(server), "control": server["control"]},
        correct=correct,
        finish=finish,
        parts={"control": Part(stale="keep")},
        server_step=server_step,
    )
