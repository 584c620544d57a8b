"""Images whose gradient points where a given one points.

Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients: How easy is it to break privacy in
federated learning? NeurIPS 2020, equation 4:

    argmin_x  1 - <grad L(x, y), g> / (||grad L(x, y)|| ||g||)  +  weight * TV(x)

with low <= x <= high, by Adam on the signs of the gradient by x. Its step falls by 10 after 3/8,
5/8 and 7/8 of the iterations.
"""

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy

import rich
import torch
from rich.progress import track
from torch import Tensor, nn

from flfast.lit.batchnorm import freeze
from flfast.lit.local_module import LocalModule
from flfast.state.tree import Tree
from flfast.state.weights import called_with

Gradient = Callable[[Tensor], Sequence[Tensor]]
"""Images [B, channels, H, W] -> gradient by each parameter, differentiable in the images."""

STEP = 0.1
"""Learning rate of Adam, as in the authors' experiments; images are normalised."""


def match_gradient(
    gradient: Gradient,
    target: Sequence[Tensor],
    *,
    bounds: tuple[Tensor, Tensor],
    start: Tensor,
    total_variation: float,
    iterations: int,
) -> tuple[Tensor, float]:
    """(images [B, channels, H, W], their final cosine distance in [0, 2]).

    Args:
        gradient: images -> gradient of the attacked model with fixed labels; see `Gradient`.
        target: the gradient to match, up to a positive factor.
        bounds: smallest and largest value of a pixel, [channels, 1, 1] each.
        start: images to start from.
        total_variation: weight of TV, >= 0.
        iterations: number of iterations, whose progress a terminal shows.
    """
    low, high = bounds
    images = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=STEP)
    milestones = [iterations * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    console = rich.get_console()
    hidden = not console.is_terminal
    for _ in track(range(iterations), "gradient inversion", console=console, disable=hidden):
        cost = cosine_distance(gradient(images), target)
        if total_variation:
            cost = cost + total_variation * variation(images)
        (slope,) = torch.autograd.grad(cost, images)
        images.grad = slope.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.copy_(torch.maximum(torch.minimum(images, high), low))
    return images.detach(), float(cosine_distance(gradient(images), target).detach())


def cosine_distance(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """1 - cosine of the angle between two gradients, []; 1 if one of them is zero."""
    dot, left_square, right_square = (
        torch.stack([(a * b).sum() for a, b in zip(one, other, strict=True)]).sum()
        for one, other in ((left, right), (left, left), (right, right))
    )
    tiny = torch.finfo(dot.dtype).tiny
    return 1 - dot / (left_square * right_square).clamp_min(tiny).sqrt()


def variation(images: Tensor) -> Tensor:
    """Anisotropic total variation of images [B, channels, H, W]: means of differences, []."""
    down = (images[:, :, 1:] - images[:, :, :-1]).abs()
    right = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs()
    return sum((part.mean() for part in (down, right) if part.numel()), images.new_zeros(()))


def surrogate_gradient(
    module: LocalModule, start: Tree, names: Collection[str], labels: Tensor
) -> Gradient:
    """The gradient of a client's step as the server can compute it, for images that it guesses.

    It is that of the task's mean loss. The model is in training mode, as the client's is, but
    without dropout, whose masks the server does not know. It is a copy on the CPU, in float32.

    Args:
        module: model and task; it stays as it is.
        start: weights that the client started from.
        names: names of the parameters, in order.
        labels: labels of the images, int64 [B].
    """
    model = deepcopy(module.model).cpu().float().train()
    freeze(model, frozen=module.freeze_batchnorm)
    for layer in model.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):  # noqa: SLF001 - their common type
            layer.eval()
    given = {**start["params"], **start["buffers"]}
    weights = {
        name: given[name].detach().cpu().to(like.dtype).clone()
        for name, like in (*model.named_parameters(), *model.named_buffers())
        if name in given
    }
    trained = [weights[name].requires_grad_() for name in names]

    def gradient(images: Tensor) -> Sequence[Tensor]:
        # BatchNorm changes its statistics in place.
        buffers = {name: leaf.clone() for name, leaf in weights.items() if not leaf.requires_grad}
        outputs = called_with(model, {**weights, **buffers}, images)
        loss = module.task_type.loss(outputs, labels)
        return torch.autograd.grad(loss, trained, create_graph=True, materialize_grads=True)

    return gradient
