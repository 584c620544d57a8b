"""The server's momentum in local steps, of FedCM and MoFedSAM.

`fedcm` has paper and equations.
"""

from collections.abc import Callable

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads, Weighting
from flfast.state.tree import Tree, add, scaled, zeros
from flfast.state.weights import model_weights


def client_momentum(
    name: str,
    gradient_weight: Callable[[int], float],
    *,
    alpha: float,
    server_lr: float,
    weighting: Weighting,
) -> Algorithm:
    """FedAvg whose local steps mix the gradient with the server's last mean gradient."""

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        delta = ctx.server["delta"]
        # In parentheses: the product is the same in all steps, and the fused engine hoists it.
        return {n: alpha * grads[n] + ((1 - alpha) * delta[n]) for n in grads if n in delta}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        length = ctx.lr.cpu() * gradient_weight(done.num_steps)  # float64
        return {**ctx.change(done.weights), "length": length}, ctx.client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean, length = uploads.mean, float(uploads.mean["length"])
        step = {"params": scaled(mean["params"], server_lr), "buffers": mean["buffers"]}
        stepped = add(server, step)
        if length:  # steps of length zero give no estimate of the gradient
            stepped["delta"] = scaled(mean["params"], -1 / length)
        return stepped

    return Algorithm(
        name=name,
        weighting=weighting,
        server_state=lambda weights: {**weights, "delta": zeros(weights["params"])},
        broadcast=lambda server: {**model_weights(server), "delta": server["delta"]},
        correct=correct,
        finish=finish,
        parts={"length": Part(learned=False)},
        server_step=server_step,
    )
