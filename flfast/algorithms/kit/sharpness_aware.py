"""The ascent step of sharpness-aware minimisation."""

import torch

from flfast.state.tree import Tree

EPS = 1e-16
"""Added to norms, as in the code of FedSAM's authors: gradients may be zero."""


@torch.no_grad()
def ascended(params: Tree, grads: Tree, *, rho: float, scales: Tree) -> Tree:
    """`params + rho * T^2 g / |T g|` with gradients g; parameters without a gradient stay.

    The gradients were taken at `params`. `scales` is the diagonal of T by name; 1 where it is
    missing.

    >>> ascended({"w": torch.zeros(2)}, {"w": torch.tensor([3.0, 4.0])}, rho=1.0, scales={})
    {'w': tensor([0.6000, 0.8000])}
    """
    scaled = {n: scales[n] * g if n in scales else g for n, g in grads.items()}
    norms = [torch.linalg.vector_norm(g) for g in scaled.values()]
    factor = rho / (torch.linalg.vector_norm(torch.stack(norms)) + EPS)
    steps = {n: factor * (scales[n] * g if n in scales else g) for n, g in scaled.items()}
    return {n: p + steps[n] if n in steps else p for n, p in params.items()}
