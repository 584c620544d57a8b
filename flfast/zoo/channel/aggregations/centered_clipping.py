"""Centered clipping: changes are clipped to a ball around the last round's aggregate.

Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization. ICML 2021,
Algorithm 2 and equation CClip. https://arxiv.org/abs/2012.10333

    v <- v + mean_k (x_k - v) * min(1, radius / |x_k - v|)      `iterations` times

x_k are changes, v starts at the aggregate of the round before, and at zero in round 1. The paper's
workers send momentum instead of gradients, which makes them vary less from round to round. Local
training averages many gradients, too; `algorithm=fedcm` and `mime` have momentum. All uploads
weigh the same.
"""

import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Known, Layout, Robust
from flfast.state.options import Count, Positive
from flfast.state.row_statistics import distances, weighted_sum
from flfast.state.tree import Tree


def centered_clipping(*, radius: Positive, iterations: Count) -> Robust:
    """The mean of changes, none of which moves it farther than radius / K per iteration."""

    def combine(rows: Tensor, weights: Tensor, known: Known) -> Combined:
        center = known.memory["center"].double()
        for _ in range(iterations):
            factor = (radius / distances(rows, center).clamp(min=radius)) / len(rows)
            center = (1 - factor.sum()) * center + weighted_sum(rows, factor)
        vector = center.to(rows.dtype)
        return Combined(vector, torch.ones(len(rows), dtype=torch.bool), {"center": vector})

    def empty(layout: Layout) -> Tree:
        return {"center": torch.zeros(layout.num_values, dtype=layout.dtype)}

    return Aggregation("centered_clipping", combine, memory=empty, on_device=True)
