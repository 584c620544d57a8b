"""Broken uploads: what a bad disk, a bad line or a bad build makes of a good one."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flfast.state.tree import Tree, leaves, tree_map
from flfast.state.vector import with_change

Corruption = Literal["not_finite", "huge", "shape"]
KINDS: tuple[Corruption, ...] = ("not_finite", "huge", "shape")
HUGE = 1e6  # times what was learned


def corrupted(
    upload: Tree, origin: Tree, kind: Corruption | Literal["any"], rng: np.random.Generator
) -> Tree:
    """A broken copy of an upload; one without numbers stays as it is.

    Args:
        upload: not changed.
        origin: what it would be had the client learned nothing.
        kind: `not_finite` has one NaN or infinity, `huge` is the change times 1e6, `shape`
            one leaf without its last number; `any` is one of these.
        rng: draws kind and place.
    """
    if kind == "any":
        kind = KINDS[rng.integers(len(KINDS))]
    if kind == "huge":
        return with_change(upload, origin, lambda change: HUGE * change)
    if kind == "shape":
        return _at_one_leaf(upload, rng, lambda leaf: leaf.flatten()[:-1].clone())

    def spoil(leaf: Tensor) -> Tensor:
        spoilt = leaf.clone(memory_format=torch.contiguous_format)
        spoilt.view(-1)[rng.integers(leaf.numel())] = rng.choice((np.nan, np.inf, -np.inf))
        return spoilt

    return _at_one_leaf(upload, rng, spoil)


def _at_one_leaf(
    upload: Tree, rng: np.random.Generator, change: Callable[[Tensor], Tensor]
) -> Tree:
    found = [leaf for leaf in leaves(upload) if leaf.is_floating_point() and leaf.numel()]
    if not found:
        return upload
    chosen = found[rng.integers(len(found))]
    return tree_map(lambda leaf: change(leaf) if leaf is chosen else leaf, upload)
