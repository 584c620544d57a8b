"""Faults of real deployments: uploads that are lost or corrupted.

Bonawitz et al.: Towards Federated Learning at Scale: System Design. MLSys 2019, sections 2 and 9.
https://arxiv.org/abs/1902.01046

Clients that never respond are `sampler.dropout`; slow and failing devices are `devices`.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from flfast.channel.faults.fault import CORRUPTING, Faults, Faulty, Scaled
from flfast.state.options import UpToOne
from flfast.state.tree import Tree, leaves, tree_map

Corruption = Literal["not_finite", "huge", "shape"]
KINDS: tuple[Corruption, ...] = ("not_finite", "huge", "shape")
HUGE = 1e6
"""Factor of the update in a `huge` upload."""


def simulated(
    *,
    lost: UpToOne,
    broken: Annotated[UpToOne, CORRUPTING],
    corruption: Corruption | Literal["any"],
) -> Faulty:
    """Independent faults of clients and rounds, drawn from the seed.

    A client whose upload is lost has trained, and keeps its state.
    """

    def transit(upload: Tree, scaled: Scaled, rng: np.random.Generator) -> Tree | None:
        is_lost, is_broken = rng.random(2) < (lost, broken)
        if is_lost:
            return None
        return corrupted(upload, scaled, corruption, rng) if is_broken else upload

    return Faults(transit if lost or broken else None, corrupts=broken > 0)


def corrupted(
    upload: Tree,
    scaled: Scaled,
    kind: Corruption | Literal["any"],
    rng: np.random.Generator,
) -> Tree:
    """A corrupted copy of an upload, which is not changed; an empty one stays as it is.

    `not_finite` sets one element to NaN or infinity, `huge` multiplies the update by 1e6, `shape`
    drops the last element of one leaf, `any` draws one of these. `scaled` is as of `Faults`, and
    `rng` draws kind and place.
    """
    if kind == "any":
        kind = KINDS[rng.integers(len(KINDS))]
    if kind == "huge":
        return scaled(HUGE)
    if kind == "shape":
        return _change_one_leaf(upload, rng, lambda leaf: leaf.flatten()[:-1].clone())

    def insert_non_finite(leaf: Tensor) -> Tensor:
        copy = leaf.clone(memory_format=torch.contiguous_format)
        copy.view(-1)[rng.integers(leaf.numel())] = rng.choice((np.nan, np.inf, -np.inf))
        return copy

    return _change_one_leaf(upload, rng, insert_non_finite)


def _change_one_leaf(
    upload: Tree, rng: np.random.Generator, change: Callable[[Tensor], Tensor]
) -> Tree:
    candidates = [leaf for leaf in leaves(upload) if leaf.is_floating_point() and leaf.numel()]
    if not candidates:
        return upload
    chosen = candidates[rng.integers(len(candidates))]
    return tree_map(lambda leaf: change(leaf) if leaf is chosen else leaf, upload)
