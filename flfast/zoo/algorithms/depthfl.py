"""DepthFL: clients train the first layers and several classifiers, which teach each other.

Kim, Yu, Kim, Moon: DepthFL: Depthwise Federated Learning for Heterogeneous Clients. ICLR 2023,
Algorithm 1. https://openreview.net/forum?id=pf8RIZTMU58

    w_k = the layers of w[t] that model k has
    h_k = sum_i CE(z_i, y) + b(t) / (E_k - 1) * sum_i sum_{j != i} KL(softmax(z_j) | softmax(z_i))
    b(t) = exp(-5 * (1 - min(t - 1, T) / T)^2)
    w[t+1] = w[t] + sum_k change_k / number of clients k that have the layer

z_i are logits of the i-th of model k's E_k classifiers. softmax(z_j) is a constant. b(t), T = 300
and KL both ways are the authors' code's. It is DepthFL (FedAvg): the paper adds FedDyn's terms.
Members of `model=family` are one option of different depths, the deepest first, such as
`model=multi_exit_cnn`, whose prediction is the mean over its classifiers.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task
from flfast.algorithms.kit.degenerate import degenerate
from flfast.algorithms.kit.slices import averaged_slices
from flfast.state.options import Count
from flfast.state.tree import Tree


def depthfl(
    *, distill: bool, ramp: Count, exits: str | None, initial: Tree, members: Sequence[Tree]
) -> Algorithm:
    """Averaged prefixes of a model with several classifiers; all clients weigh the same.

    Raises:
        ValueError: if `exits` is no module of linear layers.
    """
    layer = "exits" if exits is None else exits
    pattern = rf"{re.escape(layer)}\.\d+\.weight"
    names = [name for name in initial["params"] if re.fullmatch(pattern, name)]
    if exits is not None and not names:
        raise ValueError(
            f"algorithm.exits={exits}: is no part of the model with classifiers {exits}.0, ...; "
            f"allowed: the path of one, or null"
        )
    degenerate(not names, "algorithm=depthfl with one classifier is FedAvg of layers")
    widths = [initial["params"][name].shape[1] for name in names]

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        if not names:
            return task(params, batch)
        features, _ = task.features(params, batch, layer=layer)
        parts = zip(names, features.split(widths, dim=1), strict=True)
        logits = [_linear(params, name.removesuffix("weight"), part) for name, part in parts]
        errors = [F.cross_entropy(z, batch.targets, reduction="none") for z in logits]
        if distill and len(logits) > 1:
            rounds = (ctx.facts["round"].to(features.dtype) - 1).clamp(max=ramp)
            by = (-5 * (1 - rounds / ramp).square()).exp() / (len(logits) - 1)
            logs = [z.log_softmax(1) for z in logits]
            errors += [
                by * F.kl_div(own, other.detach(), reduction="none", log_target=True).sum(1)
                for own, other in permutations(logs, 2)
            ]
        return task.mean(torch.stack(errors).sum(0))

    base = averaged_slices("depthfl", initial, members, lacks_layers=True)
    return replace(base, tasks=("classification",), facts=("round",), loss=loss)


def _linear(params: Tree, layer: str, x: Tensor) -> Tensor:
    bias = params.get(f"{layer}bias")
    return F.linear(x, params[f"{layer}weight"].to(x.dtype), None if bias is None else bias.to(x))
