"""MOON: contrastive learning between the local, the server's and the client's previous model.

Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021, equations 3 and 4, Algorithm 1.
https://arxiv.org/abs/2103.16257

    l_con = -log(exp(s_glob / tau) / (exp(s_glob / tau) + exp(s_prev / tau)))
    h_k(w) = F_k(w) + mu * l_con,   s_x = cosine(z, z_x),   z = features before the head

Unlike the paper, no projection head is added to the model. The other two models are in evaluation
mode. In a client's first round z_prev equals z_glob, and their gradients cancel.
"""

from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.split import head_layer
from flfast.state.options import NonNegative, Positive
from flfast.state.tree import Tree
from flfast.state.weights import by_name, model_weights


def moon(
    *, mu: NonNegative, tau: Positive, head: list[str] | None, weighting: Weighting, initial: Tree
) -> Algorithm:
    """FedAvg with a model-contrastive local objective; mu = 0 is FedAvg."""
    layer = head_layer(initial, head)

    def contrastive(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z, loss = task.features(params, batch, layer=layer)
        to_global, to_previous = (
            F.cosine_similarity(z, task.fixed_features(by_name(weights), batch, layer=layer)) / tau
            for weights in (ctx.start, ctx.client)
        )
        return loss + mu * task.mean(F.softplus(to_previous - to_global))

    return Algorithm(
        name="moon",
        weighting=weighting,
        client_state=model_weights,
        loss=contrastive,
        finish=lambda done, ctx: (ctx.change(done.weights), done.weights),
    )
