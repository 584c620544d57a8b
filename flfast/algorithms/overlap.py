"""Critical parameters of clients, and which clients share them with whom."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flfast.state.near_ties import EQUAL
from flfast.state.tree import Tree, leaves, tree_map

ROUNDING = 8.0


def critical(change: Tensor, value: Tensor, share: float) -> Tensor:
    """Where |change * value| is among the largest of a tensor, and not zero; uint8.

    Args:
        change: by local training.
        value: after it.
        share: of the elements.
    """
    # Biases before BatchNorm change by rounding errors only, which differ between engines.
    rounding = ROUNDING * torch.finfo(value.dtype).eps * value.abs()
    sensitivity = torch.where(change.abs() > rounding, (change * value).abs(), 0)
    num = int(share * sensitivity.numel())
    if num == 0:
        return torch.zeros_like(sensitivity, dtype=torch.uint8)
    smallest = sensitivity.flatten().topk(num).values[-1]
    return ((sensitivity >= (1 - EQUAL) * smallest) & (sensitivity > 0)).to(torch.uint8)


def critical_masks(before: Tree, after: Tree, share: float) -> Tree:
    """`critical` for each parameter of `before`."""
    return tree_map(lambda old, new: critical(new - old, new, share), before, after)


def no_masks(params: Tree) -> Tree:
    """Masks of a client that has no critical parameters yet."""
    return tree_map(lambda leaf: torch.zeros_like(leaf, dtype=torch.uint8), params)


def weights_among(
    known: Sequence[int], masks: Tree, strictness: float, clients: Sequence[int]
) -> Tensor:
    """Weights of n known clients in the means of K clients [K, n], zero for unknown ones.

    Args:
        known: ids of the clients that have masks.
        masks: theirs, each leaf [n, ...].
        strictness: see `collaboration`.
        clients: ids of the K clients.
    """
    rows = dict(zip(known, collaboration(masks, strictness), strict=True))
    none = torch.zeros(len(known), dtype=torch.float64)
    return torch.stack([rows.get(client_id, none) for client_id in clients])


def collaboration(masks: Tree, strictness: float) -> Tensor:
    """Weights of n clients in each other's means [n, n], in float64; rows sum to one.

    Each row has equal weights for the client, and for those whose masks overlap enough with its
    own: the mean overlap of all pairs, or more.

    Args:
        masks: of critical parameters, each leaf [n, ...].
        strictness: share of the way from the mean overlap to the largest one.
    """
    flat = torch.cat([leaf.flatten(1).double() for leaf in leaves(masks)], dim=1)
    sizes = flat.sum(1, keepdim=True)
    differences = sizes + sizes.T - 2 * flat @ flat.T
    overlaps = 1 - differences / (2 * sizes.clamp(min=1))
    own = torch.eye(len(flat), dtype=torch.bool)
    others = overlaps[~own]
    chosen = own
    if len(others):
        enough = others.mean() + strictness * (others.max() - others.mean())
        chosen = own | (overlaps >= enough - EQUAL)
    return chosen / chosen.sum(1, keepdim=True).double()
