"""FedKSeed: forward passes instead of gradients, and messages of K numbers instead of models.

Qin, Chen, Qian, Ding, Li, Deng: Federated Full-Parameter Tuning of Billion-Sized Language Models
with Communication Cost under 18 Kilobytes. ICML 2024, Algorithm 1, uniform sampling of seeds.
https://arxiv.org/abs/2312.06353

    z_1 ... z_K ~ N(0, I) from K seeds that all know;  w[t] = w[0] + sum_j a_j[t] z_j
    local step:  j uniform in 1 ... K
                 g = (F_k(w + epsilon z_j) - F_k(w - epsilon z_j)) / (2 epsilon)
                 w := w - lr g z_j,  a_j := a_j - lr g
    a[t+1] = mean of the clients' a

Clients know w[0] and the seeds before round 1. In each round they download a, K numbers, and
upload its change. So a client that missed rounds rebuilds w[t] from one message. Buffers of the
model, such as statistics of BatchNorm, are sent and counted as in FedAvg. The paper uploads a pair
(j, g) for each step, which is less for fewer than K / 2 steps. Its server adds them up to the same
a. Here a holds lr, so lr may change. The reported loss is the mean of both values.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD

from flfast.algorithms.contract import (
    Algorithm,
    Batch,
    Context,
    Finished,
    LocalStage,
    Part,
    Task,
    Uploads,
    Weighting,
)
from flfast.algorithms.kit.gradient import shifted
from flfast.state.options import Count, Positive
from flfast.state.randomness import torch_generator
from flfast.state.traced_noise import traced_index, traced_normal
from flfast.state.tree import Tree, add, float_type, merge

SUMS, KEY, STEP = "fedkseed/sums", "fedkseed/key", "fedkseed/step"
"""Buffers of local training beside the model's: a, the key of the client's draws, steps taken."""


def fedkseed(  # noqa: PLR0913 - one parameter an option
    *,
    num_seeds: Count,
    distance: Positive,
    weighting: Weighting,
    momentum: float | None,
    weight_decay: float | None,
    gradient_clip_val: Literal[0, None],
    bn: str,
    initial: Tree,
    seed: int,
    frozen: Collection[str] = (),
) -> Algorithm:
    """Zeroth-order steps along K known directions, of which only the lengths are sent.

    Raises:
        ValueError: if local steps are not those of plain SGD, or clients keep parameters.
    """
    _check_steps(momentum, weight_decay, gradient_clip_val, bn)
    key = torch.randint(2**62, (), generator=torch_generator(seed, "fedkseed directions"))
    z = Directions(key, initial["params"], frozen)
    zeros = torch.zeros(num_seeds, dtype=float_type(initial["params"]))
    zero = torch.zeros((), dtype=torch.int64)

    def start(broadcast: Tree, client: Tree) -> Tree:
        buffers = {**broadcast["buffers"], SUMS: broadcast["sums"], KEY: zero, STEP: zero}
        return {"params": z.added(broadcast["sums"]), "buffers": buffers}

    @torch.no_grad()
    def gradient(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        place = traced_index(params[KEY], params[STEP], num_seeds)
        z_j = z.at(place, params)
        up, down = (task(shifted(params, z_j, s * distance), batch) for s in (1, -1))
        slope = (up - down) / (2 * distance)
        here = torch.arange(num_seeds, device=place.device) == place
        params[SUMS].sub_(here * (ctx.lr * slope).to(params[SUMS].dtype))
        params[STEP].add_(1)
        return (up + down) / 2, {n: slope.to(leaf.dtype) * leaf for n, leaf in z_j.items()}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        kept = add({**server, "params": {}}, uploads.mean)
        return {**kept, "params": z.added(kept["sums"])}

    return Algorithm(
        name="fedkseed",
        weighting=weighting,
        server_state=lambda weights: {**weights, "sums": zeros},
        broadcast=lambda server: {**server, "params": {}},
        start=start,
        stages=(LocalStage(begin=begin, optimizer=SGD),),
        gradient=gradient,
        finish=finish,
        # A model that is mixed with the server's would need other sums.
        parts={"sums": Part(stale="refuse")},
        server_step=server_step,
    )


def begin(weights: Tree, ctx: Context) -> Tree:
    """The weights with the key of the draws of j in this client's round."""
    key = torch.randint(2**62, (), generator=ctx.generator("fedkseed"))
    return merge(weights, {"buffers": {KEY: key}})


def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
    """Changes of a and of the model's buffers."""
    change = ctx.change({"buffers": done.weights["buffers"]})["buffers"]
    buffers = {n: leaf for n, leaf in change.items() if n not in {SUMS, KEY, STEP}}
    return {"params": {}, "buffers": buffers, "sums": change[SUMS]}, ctx.client


def _check_steps(
    momentum: float | None, weight_decay: float | None, clip: float | None, bn: str
) -> None:
    if bn == "local":
        raise ValueError(
            "bn=local with algorithm=fedkseed, whose clients rebuild the whole model; allowed: "
            "bn=aggregate, frozen"
        )
    if momentum != 0 or weight_decay != 0 or clip:
        raise ValueError(
            "algorithm=fedkseed adds up its own steps; allowed: optimizer=sgd with "
            "optimizer.momentum=0 and optimizer.weight_decay=0, and "
            "trainer.gradient_clip_val=null"
        )


class Directions(NamedTuple):
    """z_1 ... z_K of the parameters that are not frozen, and w[0], all parameters by name.

    They are drawn in float32, so that they are the same in every precision.
    """

    key: Tensor
    initial: Tree
    frozen: Collection[str]

    def at(self, place: Tensor, like: Tree) -> Tree:
        """z_j by name for the place j, in the data types of `like`."""
        names, device = [n for n in self.initial if n not in self.frozen], place.device
        shapes = {n: torch.empty(like[n].shape, dtype=torch.float32, device=device) for n in names}
        z = traced_normal(self.key.to(device), place, shapes)
        return {n: leaf.to(like[n].dtype) for n, leaf in z.items()}

    def added(self, sums: Tensor) -> Tree:
        """w[0] + sum_j a_j z_j, for sums a [K]."""
        w = dict(self.initial)
        for place in sums.nonzero().flatten().cpu():
            a_j, z_j = float(sums[place]), self.at(place, w)
            w |= {name: torch.add(w[name], z, alpha=a_j) for name, z in z_j.items()}
        return w
