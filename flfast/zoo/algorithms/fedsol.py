"""FedSOL: the gradient at a point where the model differs more from the server's predictions.

Lee, Jeong, Kim, Oh, Yun: FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in
Federated Learning. CVPR 2024, Algorithm 1. https://arxiv.org/abs/2308.12532

    p = grad of the mean over the batch of KL(softmax(z(w[t]) / 3), softmax(z(w) / 3))
    e = rho * L p / |p|,   L = diag(|w - w[t]| / its norm over axis 0 of each parameter)
    w := w - lr * grad F_k(w + e; batch)

z are logits, of the server's model w[t] in evaluation mode. Both gradients use the same batch, so
a step costs two, and both passes update the running statistics of BatchNorm, in the authors' code
only the first. By default e moves the last layer alone, and rho = 2; that code's settings have
rho = 1, and move all layers. |p| is over what moves. The reported loss is the one at w + e.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.gradient import gradient
from flfast.algorithms.kit.split import head_layer
from flfast.models.adapters.layer_names import layer_of
from flfast.state.options import NonNegative
from flfast.state.tree import Tree
from flfast.state.weights import by_name
from flfast.zoo.algorithms.kit.divergence import divergence
from flfast.zoo.algorithms.kit.sharpness_aware import ascent, moved

TEMPERATURE = 3.0


def fedsol(*, rho: NonNegative, body: bool, weighting: Weighting, initial: Tree) -> Algorithm:
    """FedAvg with local steps that keep the server's predictions; rho = 0 is FedAvg."""
    top = head_layer(initial, None)
    moves = {name for name in initial["params"] if body or layer_of(name) == top}

    def proximal(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tree:
        """The gradient p by name."""
        taught = task.fixed_logits(by_name(ctx.start), batch) / TEMPERATURE
        # Not in the order of a set, which is another one in each process.
        inputs = {n: p.detach().requires_grad_() for n, p in params.items() if n in moves}
        with torch.enable_grad():
            logits = task.logits({**params, **inputs}, batch) / TEMPERATURE
            loss = task.mean(divergence(logits, taught))
            return dict(zip(inputs, torch.autograd.grad(loss, [*inputs.values()]), strict=True))

    def orthogonal(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        start, p = ctx.start["params"], proximal(task, params, batch, ctx)
        steps = ascent(p, rho=rho, scales={})
        scales = {n: F.normalize((params[n].detach() - start[n]).abs(), dim=0) for n in p}
        point = moved(params, {n: scales[n] * steps[n] for n in p})
        return gradient(task, point, batch, trained=params)

    return Algorithm(
        name="fedsol", tasks=("classification",), weighting=weighting, gradient=orthogonal
    )
