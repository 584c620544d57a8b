"""Slices of one model: what clients with smaller models download, train and upload.

A slice has a window of the units of each layer, those from a shift on, and may lack layers. Where
channels are flattened, an axis has several elements a unit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import (
    Algorithm,
    Batch,
    Context,
    Finished,
    KitFunctions,
    Part,
    Task,
    Uploads,
    Weighting,
)
from flfast.algorithms.kit.split import head_layer
from flfast.state.tree import Tree, add, leaves, merge, named_leaves, part_of, tree_map
from flfast.state.weights import model_weights

_CHANGE = Part(stale="refuse")
_Window = list[tuple[int, Tensor]]
"""Axes where a slice has fewer elements, and which ones it has."""


def averaged_slices(
    name: str,
    initial: Tree,
    members: Sequence[Tree],
    *,
    weighting: Weighting = "uniform",
    rolls: bool = False,
    lacks_layers: bool = False,
) -> Algorithm:
    """FedAvg of slices: an element of the model is averaged over the clients that have it.

        w[t+1] = w[t] + sum_k n_k change_k / sum_k n_k,   over clients k that have the element

    An element that no client has stays. `initial` are the weights of the slice, and `members`
    those of all members, the largest first: the server's model. With `rolls`, windows begin a unit
    further in each round, and go round at the end. With `lacks_layers`, slices may lack layers.

    Raises:
        ValueError: naming a leaf of `initial` that is not of a slice.
    """
    whole = members[0]
    check_slice(initial, whole, lacks_layers=lacks_layers)
    like = tree_map(_ones, whole)
    counter = {"rounds": torch.tensor(0)} if rolls else {}

    def shift(tree: Tree) -> int:
        return int(tree["rounds"]) if rolls else 0

    def place(upload: Tree, broadcast: Tree) -> Tree:
        change, at = model_weights(upload), shift(broadcast)
        mask = merge(tree_map(_ones, change), upload.get("mask", {}))
        return {**padded(change, whole, at), "mask": padded(mask, like, at)}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = dict(uploads.mean)
        change = tree_map(_quotient, model_weights(mean), mean["mask"])
        return {**add(server, change), **{key: server[key] + 1 for key in counter}}

    return Algorithm(
        name=name,
        weighting=weighting,
        server_state=lambda weights: {**whole, **counter},
        broadcast=lambda server: {
            **sliced(model_weights(server), initial, shift(server)),
            **{key: server[key] for key in counter},
        },
        kit=KitFunctions(place=place),
        parts={"params": _CHANGE, "buffers": _CHANGE, "mask": Part(learned=False)},
        server_step=server_step,
    )


def with_masked_classes(algorithm: Algorithm, initial: Tree) -> Algorithm:
    """Slices whose clients mask classes that they have no examples of.

    Their logits are 0 in the client's loss and its own model, and their rows of the last layer are
    not averaged. The algorithm is one of `averaged_slices`.
    """
    head = head_layer(initial, None)
    names = [f"{head}.{kind}".removeprefix(".") for kind in ("weight", "bias")]
    rows = {name: initial["params"][name] for name in names if name in initial["params"]}
    like = next((leaf.new_ones(len(leaf)) for leaf in rows.values()), None)
    every = {} if like is None else {"classes": like}
    placed = algorithm.kit.place
    assert placed is not None

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, _ = algorithm.finish(done, ctx)
        classes = {name: _present(ctx).to(leaf.dtype) for name, leaf in every.items()}
        return {**upload, **classes}, classes

    def own_rows(weights: Tree, classes: Tensor) -> tuple[Tree, Tree]:
        mask = {name: _rows(classes, leaf) for name, leaf in rows.items()}
        kept = {name: mask[name] * weights["params"][name] for name in rows}
        return merge(weights, {"params": kept}), {"params": mask}

    def place(upload: Tree, broadcast: Tree) -> Tree:
        kept, mask = own_rows(upload, upload["classes"]) if every else (upload, {})
        return placed({**kept, "mask": mask}, broadcast)

    def personal(broadcast: Tree, client: Tree) -> Tree:
        weights = model_weights(broadcast)
        return own_rows(weights, client["classes"])[0] if every else weights

    return replace(
        algorithm,
        tasks=("classification",),
        facts=("labels",),
        loss=_masked_loss,
        client_state=lambda broadcast: every,
        finish=finish,
        kit=algorithm.kit._replace(place=place),
        parts={**algorithm.parts, **dict.fromkeys(every, Part(learned=False))},
        personal=personal,
    )


def _present(ctx: Context) -> Tensor:
    """1 for the classes of which a client has examples, else 0 [C]."""
    labels = ctx.facts["labels"]
    return (labels > 0).to(labels.dtype)  # a device may lack float64


def _masked_loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
    logits = task.logits(params, batch)
    masked = logits * _present(ctx).to(logits.dtype)
    return task.mean(F.cross_entropy(masked, batch.targets, reduction="none"))


def check_slice(weights: Tree, whole: Tree, *, lacks_layers: bool = False) -> None:
    """Check that a model is a slice of another one, which may lack layers or not.

    Raises:
        ValueError: naming a leaf that is not.
    """
    for name, inner, outer in _misfits(weights, whole, lacks_layers=lacks_layers):
        raise ValueError(
            f"model.of: the first member must be the largest, and others slices of it; {name} "
            f"has shape {inner}, in the first member {outer}"
        )


def narrower(members: Sequence[Tree], weights: Tree) -> list[Tree]:
    """The members that are slices of a model, each shape once."""
    found = [one for one in members if not any(_misfits(one, weights, lacks_layers=False))]
    return [*{str([leaf.shape for leaf in leaves(one)]): one for one in found}.values()]


def _misfits(
    weights: Tree, whole: Tree, *, lacks_layers: bool
) -> Iterator[tuple[str, list[int] | None, list[int] | None]]:
    """Names and shapes of leaves that are in one model only, or larger in the first one."""
    own, other = (
        {name: list(leaf.shape) for name, leaf in named_leaves(tree)} for tree in (weights, whole)
    )
    for name in {**({} if lacks_layers else other), **own}:
        inner, outer = own.get(name), other.get(name)
        fits = inner is not None and outer is not None and len(inner) == len(outer)
        if not fits or any(a > b for a, b in zip(inner or (), outer or (), strict=True)):
            yield name, inner, outer


def sliced(weights: Tree, like: Tree, shift: int = 0) -> Tree:
    """Copies of the leaves of a slice with the shapes of `like`, from a shift in units on."""

    def taken(leaf: Tensor, window: _Window) -> Tensor:
        for axis, index in window:
            leaf = leaf.index_select(axis, index)
        return leaf if window else leaf.clone()

    return tree_map(taken, part_of(weights, like), _windows(like, weights, shift))


def padded(weights: Tree, like: Tree, shift: int = 0) -> Tree:
    """Leaves of the shapes of `like`: zeros, but for a slice from a shift in units on."""
    windows = _windows(weights, like, shift)

    def placed(leaf: Tensor, whole: Tensor, window: _Window) -> Tensor:
        for axis, index in window:
            size = [*leaf.shape]
            size[axis] = whole.shape[axis]
            leaf = leaf.new_zeros(size).index_copy(axis, index, leaf)
        return leaf

    return {
        kind: {
            name: placed(weights[kind][name], whole, windows[kind][name])
            if name in weights[kind]
            else torch.zeros_like(whole)
            for name, whole in group.items()
        }
        for kind, group in like.items()
    }


def _windows(like: Tree, whole: Tree, shift: int) -> dict[str, dict[str, _Window]]:
    """Where each leaf of a slice is in that of the whole model."""
    return {kind: dict(_windows_of(group, whole[kind], shift)) for kind, group in like.items()}


def _windows_of(like: Tree, whole: Tree, shift: int) -> Iterator[tuple[str, _Window]]:
    before = (1, 1)  # units of the layer before, in the slice and in the whole
    for name, leaf in like.items():
        window = []
        for axis, (size, total) in enumerate(zip(leaf.shape, whole[name].shape, strict=True)):
            if size == total:
                continue
            flat = axis == 1 and total % before[1] == 0 and size * before[1] == total * before[0]
            unit = total // before[1] if flat else 1
            index = torch.arange(size, device=leaf.device) + shift * unit
            window.append((axis, index % total))
        if leaf.dim():
            before = (len(leaf), len(whole[name]))
        yield name, window


def _rows(classes: Tensor, leaf: Tensor) -> Tensor:
    return classes.view(-1, *[1] * (leaf.dim() - 1)).expand_as(leaf)


def _ones(leaf: Tensor) -> Tensor:
    return torch.ones_like(leaf, dtype=leaf.dtype if leaf.is_floating_point() else torch.float32)


def _quotient(total: Tensor, count: Tensor) -> Tensor:
    return torch.where(count > 0, total / count, 0).to(total.dtype)
