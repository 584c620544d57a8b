"""FedPHP: clients average their models over rounds; the averages are personal, and teach.

Li, Zhan, Shao, Li, Song: FedPHP: Federated Personalization with Inherited Private Models. ECML
PKDD 2021, equation 5, Algorithm 1. https://doi.org/10.1007/978-3-030-86486-6_36

    h_k(w) = (1 - lam) * F_k(w) + lam * MMD^2(features of w, features of p_k)
    p_k := mu_k * p_k + (1 - mu_k) * w_k,   mu_k = mu * min(z_k / (fraction * horizon), 1)

p_k is the inherited private model, in evaluation mode; z_k counts the earlier rounds of client k.
Features are the inputs of the last layer. The paper also transfers knowledge in other ways. The
details are those of the authors' code (github.com/lxcnju/FedRepo), where every p_k starts at w[0];
here it starts at the broadcast of the client's first round. Batches of one example have no
transfer: there, the gradient of that code diverges as w gets near p_k.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Task, Weighting
from flfast.algorithms.kit.split import head_layer
from flfast.state.options import BelowOne, Count, PositiveUpToOne
from flfast.state.tree import Tree, tree_map
from flfast.state.weights import by_name, model_weights
from flfast.zoo.algorithms.kit.discrepancy import squared_mmd


def fedphp(  # noqa: PLR0913 - one parameter an option
    *,
    mu: BelowOne,
    lam: BelowOne,
    horizon: Count,
    fraction: PositiveUpToOne | None,
    count: Count | None,
    weighting: Weighting,
    initial: Tree,
    num_clients: int,
) -> Algorithm:
    """FedAvg with averaged personal models as teachers; lam = 0 trains the server's as FedAvg."""
    share = count / num_clients if count else fraction or 1.0
    layer, expected = head_layer(initial, None), max(horizon * share, 1.0)
    never = torch.zeros((), dtype=torch.float64)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z, error = task.features(params, batch, layer=layer)
        fixed = task.fixed_features(by_name(ctx.client), batch, layer=layer)
        return (1 - lam) * error + lam * squared_mmd(z, fixed)

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        z_k, p_k = ctx.client["rounds"], model_weights(ctx.client)
        mu_k = mu * min(float(z_k) / expected, 1.0)
        average = tree_map(lambda p, w: (w + mu_k * (p - w)).to(w.dtype), p_k, done.weights)
        return ctx.change(done.weights), {**average, "rounds": z_k + 1}

    return Algorithm(
        name="fedphp",
        weighting=weighting,
        client_state=lambda broadcast: {**model_weights(broadcast), "rounds": never},
        loss=loss,
        separable=False,
        finish=finish,
        personal=lambda broadcast, client: model_weights(client),
    )
