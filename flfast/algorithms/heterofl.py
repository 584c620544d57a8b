"""HeteroFL: clients train slices of the model, which are averaged where they are.

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients. ICLR 2021, Algorithm 1. https://arxiv.org/abs/2010.01264

    w_k = the leading elements of w[t] in each axis, as many as model k has
    h_k = F_k with logits of classes that client k does not have set to 0   (masked cross-entropy)
    w[t+1] = w[t] + sum_k change_k / number of clients k that have the element

Slices are members of `model=family` of one option, the widest first; `model=heterofl_cnn` has
their Scaler. Their static BatchNorm is `bn=recalibrate`. Where nobody has an element, it stays.
Classes of the output layer that a client lacks are averaged here with a change of zero; the
authors' code leaves them out of the mean.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Part, Task, Uploads
from flfast.state.tree import Tree, add, named_leaves, tree_map
from flfast.state.weights import model_weights


def heterofl(*, masked: bool, initial: Tree, widest: Tree) -> Algorithm:
    """FedAvg of slices; all clients weigh the same."""
    check_slice(initial, widest)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        logits = task.logits(params, batch)
        if masked:
            logits = logits * (ctx.facts["labels"] > 0).to(logits.dtype)
        return task.mean(F.cross_entropy(logits, batch.targets, reduction="none"))

    def place(upload: Tree) -> Tree:
        mask = {name: tree_map(torch.ones_like, upload[name]) for name in upload}
        return {**padded(upload, widest), "mask": padded(mask, widest)}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = dict(uploads.mean)
        mask = mean.pop("mask")
        return add(server, tree_map(lambda total, num: total / num.clamp(min=1), mean, mask))

    return Algorithm(
        name="heterofl",
        tasks=("classification",),
        weighting="uniform",
        server_state=lambda weights: widest,
        broadcast=lambda server: sliced(model_weights(server), initial),
        facts=("labels",) if masked else (),
        loss=loss,
        place=place,
        parts={
            "params": Part("sum"),
            "buffers": Part("sum"),
            "mask": Part("sum", learned=False),
        },
        server_step=server_step,
    )


def check_slice(weights: Tree, whole: Tree) -> None:
    """Check that a model is a slice of another one.

    Raises:
        ValueError: naming a leaf that is not.
    """
    own, other = (dict(named_leaves(tree)) for tree in (weights, whole))
    for name in {**other, **own}:
        sizes = [list(leaves[name].shape) if name in leaves else None for leaves in (own, other)]
        inner, outer = sizes
        fits = inner is not None and outer is not None and len(inner) == len(outer)
        if not fits or any(a > b for a, b in zip(inner or (), outer or (), strict=True)):
            raise ValueError(
                f"model.of: the first member must be the widest, and others slices of it; {name} "
                f"has shape {inner}, in the first member {outer}"
            )


def sliced(weights: Tree, like: Tree) -> Tree:
    """The leading elements of each leaf, in copies with the shapes of `like`."""
    return tree_map(lambda leaf, own: leaf[_of(own)].clone(), weights, like)


def padded(weights: Tree, like: Tree) -> Tree:
    """Leaves of the shapes of `like`: zeros, but for the leading elements."""

    def placed(leaf: Tensor, whole: Tensor) -> Tensor:
        found = leaf.new_zeros(whole.shape)
        found[_of(leaf)] = leaf
        return found

    return tree_map(placed, weights, like)


def _of(leaf: Tensor) -> tuple[slice, ...]:
    return tuple(slice(size) for size in leaf.shape)
