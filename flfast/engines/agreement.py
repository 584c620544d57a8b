"""Whether two ways to take the same local steps arrive at the same weights."""

import torch

from flfast.state.tree import Tree


def agree(before: Tree, eager: Tree, fused: Tree, *, low: bool) -> bool:
    """Whether two steps agree but for rounding, which may be much of a step in low precision.

    Over all leaves together: a gradient that is only rounding may be a whole step of Adam's.
    """
    update = distance = rounding = 0.0
    for name, leaf in eager.items():
        if not leaf.is_floating_point():
            continue
        update += float((leaf.double() - before[name].double()).square().sum())
        distance += float((leaf.double() - fused[name].double()).square().sum())
        rounding += (8 * torch.finfo(leaf.dtype).eps) ** 2 * float(leaf.double().square().sum())
    return distance <= (0.2 if low else 0.05) ** 2 * update + rounding
