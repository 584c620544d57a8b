"""The shortest convex combination of vectors, with weights near given ones."""

import torch
from torch import Tensor

RIDGE = 1e-12
"""Times the identity, added to the Gram matrix of vectors of length one: it may be singular."""


def min_norm_weights(gram: Tensor, center: Tensor, radius: float) -> Tensor:
    """argmin_x x' G x over the simplex with |x - center|_inf <= radius; float64 [K].

    A primal active-set method, which is exact after finitely many steps: it moves to the minimum
    over the free weights, fixes the first one that reaches a bound, and frees one whose bound
    keeps the minimum from getting lower.

    >>> min_norm_weights(torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([0.5, 0.5]), 1.0)
    tensor([0.7500, 0.2500], dtype=torch.float64)

    Args:
        gram: inner products of the K vectors, [K, K], about 1 on the diagonal.
        center: center of the weights, on the simplex, [K].
        radius: >= 0.
    """
    gram, x = gram.double(), center.double()
    low, high = (x - radius).clamp(min=0), (x + radius).clamp(max=1)
    movable = high > low
    free = movable.clone()
    hessian = gram + RIDGE * torch.eye(len(x), dtype=gram.dtype)
    for _ in range(20 * len(x)):  # rounding errors could let it cycle
        if not free.any():
            break
        step, level = _step(hessian, x, free)
        room = torch.where(step > 0, high - x, x - low) / step.abs()
        room[step == 0] = torch.inf
        nearest = int(room.argmin())
        if room[nearest] < 1:
            x = (x + room[nearest].clamp(min=0) * step).clamp(low, high)
            free[nearest] = False
            continue
        x = (x + step).clamp(low, high)
        slope = hessian @ x - level
        gain = torch.where(x - low < high - x, -slope, slope).masked_fill(free | ~movable, 0)
        if gain.max() <= RIDGE:
            break
        free[int(gain.argmax())] = True
    return x


def _step(hessian: Tensor, x: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """(step [K] to the minimum over the free weights of equal sum, slope there [])."""
    num = int(free.sum())
    system = torch.ones(num + 1, num + 1, dtype=x.dtype)
    system[:num, :num], system[num, num] = hessian[free][:, free], 0
    right = torch.cat([-(hessian @ x)[free], x.new_zeros(1)])
    solution = torch.linalg.solve(system, right)
    step = torch.zeros_like(x)
    step[free] = solution[:num]
    return step, -solution[num]
