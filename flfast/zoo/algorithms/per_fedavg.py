"""Per-FedAvg: FedAvg of an initial model that one gradient step personalises.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach. NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2002.07948

    u = w - alpha * grad F(w; D)
    w := w - beta * (v - alpha * hessian F(w; D'') v),   v = grad F(u; D')
    first_order:    without the Hessian
    hessian_free:   hessian F(w) v  =~  (grad F(w + h * v) - grad F(w - h * v)) / (2 * h)
    exact:          hessian F(w) v by a second backward pass

A step takes 2 gradients with `first_order`, 4 with `hessian_free` and about 4 with `exact`. In
h = delta * (1 + |w|) / |v|, as in Jacobian-free Newton-Krylov methods, the size of v cancels, and
h * v does not vanish beside w. delta = 0.005 is the cube root of float32's epsilon. The product
errs by O(delta^2) if the model is smooth. With ReLU it may err more than `first_order`. beta is
`optimizer.lr`. Fine-tuning at evaluation personalises.
"""

from typing import Literal

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.gradient import gradient, hessian_product, shifted
from flfast.state.options import NonNegative, Positive
from flfast.state.tree import Tree, squared_norm


def per_fedavg(
    *,
    alpha: NonNegative,
    gradients: Literal["first_order", "hessian_free", "exact"],
    delta: Positive,
    batches: Literal["disjoint", "same"],
    weighting: Weighting,
) -> Algorithm:
    """FedAvg on the loss after one gradient step; alpha = 0 is FedAvg.

    A batch with fewer than two examples per part is not split.
    """
    num_parts = 2 if gradients == "first_order" else 3

    def parts(batch: Batch) -> list[Batch]:
        if batches == "same" or len(batch.targets) < 2 * num_parts:
            return [batch] * num_parts
        places = [slice(first, None, num_parts) for first in range(num_parts)]
        return [batch.part(p) for p in places]

    def product(task: Task, params: Tree, v: Tree, batch: Batch) -> Tree:
        if gradients == "exact":
            return hessian_product(task, params, batch, v, trained=params)
        w = {name: params[name].detach() for name in v}
        h = delta * (1 + squared_norm(w).sqrt()) / squared_norm(v).sqrt().clamp(min=1e-12)
        ahead, behind = (
            gradient(task, shifted(params, v, step), batch, trained=params)[1] for step in (h, -h)
        )
        return {name: (ahead[name] - behind[name]) / (2 * h) for name in v}

    def meta(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        first, second, *third = parts(batch)
        _, grads = gradient(task, params, first, trained=params)
        value, grads = gradient(task, shifted(params, grads, -alpha), second, trained=params)
        products = product(task, params, grads, third[0]) if third else {}
        return value, shifted(grads, products, -alpha)

    return Algorithm(name="per_fedavg", weighting=weighting, gradient=meta)
