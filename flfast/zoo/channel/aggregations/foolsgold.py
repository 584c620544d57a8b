"""FoolsGold: clients whose changes always resemble another client's lose their weight.

Fung, Yoon, Beschastnikh: The Limitations of Federated Learning in Sybil Settings. RAID 2020,
Algorithm 1. https://arxiv.org/abs/1808.04866

    H_k: sum of all changes of client k, of the last layer only
    cs_kj = cos(H_k, H_j),   v_k = max_j cs_kj
    cs_kj <- cs_kj * v_k / v_j    where v_j > v_k
    a_k = 1 - max_j cs_kj, divided by max_k a_k
    a_k <- confidence * (ln(a_k / (1 - a_k)) + 0.5), clipped to [0, 1]
    result = sum_k a_k * x_k / sum_k a_k

Similarities are at least 0, as in the authors' code. The paper's server adds a_k * x_k, which are
steps of SGD; the mean of weights of clients is divided by the sum of a_k. The last layer has the
paper's indicative features; the server keeps as many numbers of every client of the population.
Clients with the same data look like one attacker's: the rule is for non-IID clients.
"""

import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Known, Layout, Robust
from flfast.state.options import Positive
from flfast.state.row_statistics import weighted_sum
from flfast.state.tree import Tree


def foolsgold(*, confidence: Positive) -> Robust:
    """The mean of changes, weighted by how much each client's history differs from all others."""

    def combine(rows: Tensor, weights: Tensor, known: Known) -> Combined:
        history = known.memory["history"].clone()
        total = history[known.clients] + rows[:, known.layout.last_layer]
        most = torch.finfo(total.dtype).max
        # An infinite sum has no direction, in this round and in all that follow.
        history[known.clients] = total.clamp(-most, most)
        trust = _dissimilarity(history[known.clients].double(), confidence)
        used = trust > 0
        vector = weighted_sum(rows[used], trust[used] / trust.sum())
        return Combined(vector.to(rows.dtype), used, {"history": history})

    def empty(layout: Layout) -> Tree:
        width = len(range(layout.num_values)[layout.last_layer])
        return {"history": torch.zeros(layout.num_clients, width, dtype=layout.dtype)}

    return Aggregation("foolsgold", combine, memory=empty)


def _dissimilarity(history: Tensor, confidence: float) -> Tensor:
    """Weights float64 [K] in [0, 1], of histories float64 [K, d]; 0 if all point the same way."""
    # Squares of huge numbers overflow, so each history is divided by its largest number first.
    # The column is for histories of no numbers.
    peaks = torch.nn.functional.pad(history.abs(), (0, 1), value=1e-12).amax(dim=1, keepdim=True)
    units = torch.nn.functional.normalize(history / peaks, dim=1, eps=1)
    similar = (units @ units.T).fill_diagonal_(0)
    highest = similar.max(dim=1).values
    # v_j > v_k >= 0, since the diagonal is 0, so that v_j is positive where it divides.
    pardon = (highest[:, None] / highest[None, :]).where(highest[None, :] > highest[:, None], 1)
    # Rounding must not tell equal histories apart: their similarity is 1.
    distinct = (1 - (similar * pardon).max(dim=1).values).clamp(0, 1)
    distinct = distinct.where(distinct > 1e-9, 0)
    scaled = distinct / distinct.max().clamp(min=1e-300)
    return (confidence * (scaled.logit() + 0.5)).clamp(0, 1)
