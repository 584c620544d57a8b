"""FedSMOO: FedDyn whose clients agree on the point uphill that their gradients are taken at.

Sun, Shen, Chen, Ding, Tao: Dynamic Regularized Sharpness Aware Minimization in Federated Learning:
Approaching Global Consistency and Smooth Landscape. ICML 2023. https://arxiv.org/abs/2305.11584

    v = grad F_k(w; batch) - mu_k - s[t],   s_k = rho * v / |v|,   |v| over all parameters
    mu_k := mu_k + s_k - s[t]
    w := w - lr * (grad F_k(w + s_k; batch) - g_k[t] + alpha * (w - w[t]))
    s[t+1] = rho * m / |m|,   m = mean_k (mu_k - s_k), after the last step

Clients keep mu_k, and send mu_k - s_k beside their model; the server broadcasts s. Both start at
0. `feddyn` has the equations of g_k and of the server's model. The authors' code has m = mean_k
mu_k, since s_k is short. The step is along v: mu_k and s are subtracted there, as in that code. A
step costs two gradients. The reported loss is the one at w.
"""

from dataclasses import replace

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Part, Task, Uploads
from flfast.algorithms.kit.gradient import gradient
from flfast.state.options import NonNegative, Positive
from flfast.state.tree import Tree, merge, sub, zeros
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.dynamic_regulariser import dynamic_regulariser
from flfast.zoo.algorithms.kit.sharpness_aware import ascent, moved

DUAL, LAST = "fedsmoo/dual/", "fedsmoo/last/"
"""Prefixes of buffers of local training: mu_k, and s_k of the last step."""


def fedsmoo(*, alpha: Positive, rho: NonNegative) -> Algorithm:
    """FedDyn with sharpness-aware local steps, whose ascent a dual variable aligns.

    Without an ascent, rho = 0, it is FedDyn. All clients weigh the same, as in the paper.
    """
    regularised = dynamic_regulariser("fedsmoo", alpha=alpha)

    def uphill(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        value, here = gradient(task, params, batch, trained=params)
        s, mu = ctx.server["ascent"], _part(params, DUAL)
        # Parameters that stay on the client (`bn=local`) have no dual variable.
        v = {n: g - mu[n] - s[n] if n in s else g for n, g in here.items()}
        s_k = ascent(v, rho=rho, scales={})
        _, grads = gradient(task, moved(params, s_k), batch, trained=params)
        for n in [n for n in s_k if n in s]:
            params[DUAL + n].copy_(mu[n] + (s_k[n] - s[n]))
            params[LAST + n].copy_(s_k[n])
        return value, grads

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        buffers = done.weights["buffers"]
        dual, last = (_part(buffers, prefix) for prefix in (DUAL, LAST))
        own = {n: leaf for n, leaf in buffers.items() if not n.startswith((DUAL, LAST))}
        model = done._replace(weights={**done.weights, "buffers": own})
        upload, state = regularised.finish(model, ctx)
        return {**upload, "ascent": sub(dual, last)}, {**state, "dual": dual}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = {**uploads.mean}
        s = {**server["ascent"], **ascent(mean.pop("ascent"), rho=rho, scales={})}
        return {**regularised.server_step(server, uploads._replace(mean=mean)), "ascent": s}

    return replace(
        regularised,
        server_state=lambda w: {**regularised.server_state(w), "ascent": zeros(w["params"])},
        client_state=lambda b: {**regularised.client_state(b), "dual": zeros(b["params"])},
        broadcast=lambda server: {**model_weights(server), "ascent": server["ascent"]},
        start=start,
        gradient=uphill,
        finish=finish,
        parts={**regularised.parts, "ascent": Part(stale="keep")},
        server_step=server_step,
    )


def start(broadcast: Tree, client: Tree) -> Tree:
    """The downloaded model, with mu_k and s_k = 0 among its buffers."""
    own = {DUAL: client["dual"], LAST: zeros(client["dual"])}
    joint = {prefix + n: leaf for prefix, tree in own.items() for n, leaf in tree.items()}
    return merge(model_weights(broadcast), {"buffers": joint})


def _part(leaves: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): leaf for n, leaf in leaves.items() if n.startswith(prefix)}
