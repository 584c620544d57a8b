"""GPFL: vectors of the classes guide shared features, from which clients take their own.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: GPFL: Simultaneously Learning Global and Personalized
Feature Information for Personalized Federated Learning. ICCV 2023. https://arxiv.org/abs/2308.10279

    V(z, c) = relu((1 + gamma(c)) * z + beta(c)),   gamma, beta = norm(relu(linear)), [D] -> [D]
    g = V(z, mean of the rows of E'),   p = V(z, mean weighted by the client's class counts)
    h_k = mean_i (CE(H_k(p_i), y_i) + CE(cos(g_i, E), y_i) + lam * |g_i - E'[y_i]|) + mu/2 * |t|^2

E are vectors of the classes [C, D], E' those received; t are gamma, beta and E. All but the heads
H_k is shared, and H_k(p) predicts. The authors' code takes |g - E'| of a batch, and older E in V.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.own_module import OwnModule
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, merge, squared_norm
from flfast.state.weights import model_weights

ROWS, COUNTS = ".classes.weight", ".counts"


def gpfl(
    *, lam: NonNegative, mu: NonNegative, head: list[str] | None, initial: Tree, seed: int
) -> Algorithm:
    """FedAvg of the body, with modules that guide features, and with personal heads."""
    top = linear_head(initial, head)
    num, d = top.shape
    parts = {
        "classes": lambda: nn.Embedding(num, d),
        "valve": lambda: nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.GroupNorm(2, 2 * d)),
    }
    classes, valve = (OwnModule(name, make, initial, seed=seed) for name, make in parts.items())
    own = merge(classes.initial, valve.initial)

    def routed(weights: Tree, z: Tensor, received: Tree, counts: Tensor) -> Tensor:
        c = (counts / counts.sum()).to(z) @ received[ROWS].to(z)
        gamma, beta = valve(weights, c[None]).chunk(2, 1)
        return F.relu((1 + gamma) * z + beta)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z, n_k = top.features(task, params, batch), ctx.facts["labels"]
        p, g = (routed(params, z, ctx.start["params"], n) for n in (n_k, torch.ones_like(n_k)))
        logits = top.logits(params, p), F.normalize(g) @ F.normalize(params[ROWS]).T
        errors = [F.cross_entropy(x, batch.targets, reduction="none") for x in logits]
        far = (g - ctx.start["params"][ROWS].to(z)[batch.targets]).norm(dim=1)
        decay = squared_norm({name: params[name] for name in own["params"]})
        return task.mean(errors[0] + errors[1] + lam * far) + mu / 2 * decay

    def predict(task: Task, w: Tree, batch: Batch) -> Tensor:
        return top.logits(w, routed(w, top.fixed_features(task, w, batch), w, w[COUNTS]))

    federated = Algorithm(
        name="gpfl",
        server_state=lambda weights: merge(weights, own),
        client_state=lambda broadcast: {"buffers": {COUNTS: torch.ones(num).double()}},
        facts=("labels",),
        loss=loss,
        finish=lambda done, ctx: (
            ctx.change(done.weights),
            {"buffers": {COUNTS: ctx.facts["labels"]}},
        ),
        personal=lambda broadcast, client: merge(model_weights(broadcast), client),
        predict=predict,
    )
    return keep_local(federated, top.initial)
