"""Images whose gradient points where a given one points.

Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients: How easy is it to break privacy in
federated learning? NeurIPS 2020, equation 4:

    argmin_x  1 - <grad L(x, y), g> / (||grad L(x, y)|| ||g||)  +  weight * TV(x)

with low <= x <= high, by Adam on the signs of the gradient by x. Its step falls by 10 after 3/8,
5/8 and 7/8 of the iterations.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

Gradient = Callable[[Tensor], Sequence[Tensor]]
"""Images [B, channels, H, W] -> gradient by each parameter, differentiable in the images."""

STEP = 0.1
"""Learning rate of Adam, as in the authors' experiments; images are normalised."""


def match_gradient(  # noqa: PLR0913 - what the attacker knows, and how it searches
    gradient: Gradient,
    target: Sequence[Tensor],
    *,
    bounds: tuple[Tensor, Tensor],
    start: Tensor,
    total_variation: float,
    iterations: Iterable[int],
    num_iterations: int,
) -> tuple[Tensor, float]:
    """(images [B, channels, H, W], their final cosine distance in [0, 2]).

    Args:
        gradient: images -> gradient of the attacked model with fixed labels; see `Gradient`.
        target: the gradient to match, up to a positive factor.
        bounds: smallest and largest value of a pixel, [channels, 1, 1] each.
        start: images to start from.
        total_variation: weight of TV, >= 0.
        iterations: iterable over the iterations, which may show progress.
        num_iterations: number of iterations.
    """
    low, high = bounds
    images = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=STEP)
    milestones = [num_iterations * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for _ in iterations:
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
