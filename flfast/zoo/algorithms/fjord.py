"""FjORD: in each local step, a client trains a narrower model within its own.

Horvath, Laskaridis, Almeida, Leontiadis, Venieris, Lane: FjORD: Fair and Accurate Federated
Learning under heterogeneous targets with Ordered Dropout. NeurIPS 2021, sections 3 and 4.
https://arxiv.org/abs/2102.13451

    w_k = the leading units of each layer of w[t], as many as model k has
    h_k = CE(w[p], y),   w[p] = the leading units of w_k, of a width p that each step draws
    h_k = CE(w, y) + CE(w[p], softmax of logits of w)   with `distill`; the softmax is a constant
    w[t+1] = w[t] + sum_k n_k change_k / sum_k n_k,   over clients k that have the element

Widths are those of the members of `model=family`, the widest first. Units beyond p get the weight
and bias 0, which leaves them out if a layer gives 0 for them, as with ReLU; such a step costs as
much as one of the own width. Layers that normalise over units see zeros. The paper has BatchNorm
for each width; here there is one, which `bn=recalibrate` fits to the whole model.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, LocalStage, Task
from flfast.algorithms.kit.slices import averaged_slices, narrower
from flfast.state.traced_noise import traced_index
from flfast.state.tree import Tree, merge, without

KEY, STEP = "fjord/key", "fjord/step"
"""Buffers of local training beside the model's: of the client's draws, and steps taken."""


def fjord(*, distill: bool, initial: Tree, members: Sequence[Tree]) -> Algorithm:
    """Averaged slices, each trained at all widths up to its own."""
    base = averaged_slices("fjord", initial, members, weighting="samples")
    inner = [one["params"] for one in narrower(members, initial)]
    start = {"buffers": {KEY: torch.tensor(0), STEP: torch.tensor(0)}}

    def begin(weights: Tree, ctx: Context) -> Tree:
        key = torch.randint(2**62, (), generator=ctx.generator("widths"))
        return merge(weights, {"buffers": {KEY: key}})

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        place = traced_index(params[KEY], params[STEP], len(inner))
        params[STEP].add_(1)
        narrow = {**params, **ordered_dropout(params, inner, place)}
        if not distill:
            return task(narrow, batch)
        logits = task.logits(params, batch)
        teacher = logits.detach().softmax(1)
        errors = F.cross_entropy(logits, batch.targets, reduction="none")
        student = F.cross_entropy(task.logits(narrow, batch), teacher, reduction="none")
        return task.mean(errors + student)

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return base.finish(done._replace(weights=without(done.weights, start)), ctx)

    return replace(
        base,
        tasks=("classification",) if distill else base.tasks,
        start=lambda broadcast, client: merge(base.start(broadcast, client), start),
        stages=(LocalStage(loss=loss, begin=begin),),
        separable=False,
        finish=finish,
    )


def ordered_dropout(params: Tree, widths: Sequence[Tree], place: Tensor) -> Tree:
    """Parameters that are 0 beyond the units of one of several widths.

    `widths` are parameters of slices, and `place` is that of one of them, int64 [].
    """
    kept: dict[tuple[int, ...], Tensor] = {}
    dropped = {}
    for name in widths[0]:
        leaf = params[name]
        for axis, total in enumerate(leaf.shape):
            sizes = tuple(one[name].shape[axis] for one in widths)
            if min(sizes) == total:
                continue
            if sizes not in kept:
                size = sum((place == number) * num for number, num in enumerate(sizes))
                kept[sizes] = torch.arange(total, device=leaf.device) < size
            leaf = leaf * kept[sizes].view(-1, *[1] * (leaf.dim() - axis - 1)).to(leaf.dtype)
        dropped[name] = leaf
    return dropped
