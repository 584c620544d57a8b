"""The dynamic regulariser of FedDyn, FedSMOO and FedLESAM-D.

`feddyn` has paper and equations.
"""

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads
from flfast.state.tree import Tree, add, tree_map, zeros


def dynamic_regulariser(name: str, *, alpha: float) -> Algorithm:
    """FedDyn under a name, with the regulariser's gradient as a correction of local steps."""

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        start, g = ctx.server["params"], ctx.client["gradient"]
        # Parameters that stay on the client (`bn=local`) are not regularised.
        shared = [name for name in grads if name in start]
        return {**grads, **{n: grads[n] - g[n] + alpha * (params[n] - start[n]) for n in shared}}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        start, end = ctx.server["params"], done.weights["params"]
        # Over shared parameters; wrappers may keep others local.
        g = tree_map(lambda w_t, w, g: g - alpha * (w - w_t), start, end, ctx.client["gradient"])
        return ctx.change(done.weights), {"gradient": g}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = uploads.mean["params"]
        share = uploads.num_clients / uploads.population
        h = tree_map(lambda h, d: h - alpha * share * d, server["h"], mean)
        step = tree_map(lambda d, h: d - h / alpha, mean, h)
        return {**add(server, {**uploads.mean, "params": step}), "h": h}

    return Algorithm(
        name=name,
        weighting="uniform",
        server_state=lambda weights: {**weights, "h": zeros(weights["params"])},
        client_state=lambda broadcast: {"gradient": zeros(broadcast["params"])},
        correct=correct,
        finish=finish,
        parts={"params": Part(stale="keep")},
        server_step=server_step,
    )
