"""Krum and Multi-Krum: the upload, or the mean of those, closest to their neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017, sections 3 and 6. https://arxiv.org/abs/1703.02757

    s(k) = sum of |u_k - u_j|^2 over the K - f - 2 uploads j nearest to k

All uploads weigh the same. Ties go to the first client of the cohort, and scores that differ by
rounding only are ties (`state/near_ties.py`). At most K - f - 2 uploads are selected, which is the
range of the proof (El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of Distributed Learning
in Byzantium. ICML 2018).
"""

from dataclasses import replace

import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Robust
from flfast.state.near_ties import largest
from flfast.state.options import Count, NonNegativeInt
from flfast.state.row_statistics import squared_distances, weighted_sum


def multi_krum(*, num_byzantine: NonNegativeInt, num_selected: Count | None) -> Robust:
    """The mean of the uploads with the lowest scores."""
    min_uploads = max(2 * num_byzantine + 3, (num_selected or 1) + num_byzantine + 2)

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        num_neighbours = len(rows) - num_byzantine - 2
        scores = krum_scores(squared_distances(rows), num_neighbours)
        used = torch.zeros(len(rows), dtype=torch.bool)
        used[largest(-scores.cpu().numpy(), num_selected or num_neighbours)] = True
        share = used[used] / used.sum().double()
        vector = weighted_sum(rows[used.to(rows.device)], share.to(rows.device))
        return Combined(vector.to(rows.dtype), used)

    given = "" if num_selected is None else f" aggregation.num_selected={num_selected}"
    return Aggregation(
        "multi_krum",
        combine,
        min_uploads,
        f"aggregation.num_byzantine={num_byzantine}{given} needs {min_uploads}",
        on_device=True,
    )


def krum(*, num_byzantine: NonNegativeInt) -> Robust:
    """Multi-Krum that selects one upload."""
    one = multi_krum(num_byzantine=num_byzantine, num_selected=1)
    reason = f"aggregation.num_byzantine={num_byzantine} needs {one.min_uploads}"
    return replace(one, name="krum", reason=reason)


def krum_scores(squares: Tensor, num_neighbours: int) -> Tensor:
    """Sum of each upload's smallest squared distances to `num_neighbours` < K others.

    It is finite, float64 [K]. Of the squared distances [K, K], those that overflowed are infinite.
    """
    near = squares.clone().fill_diagonal_(torch.inf).sort(dim=1).values
    return near[:, :num_neighbours].sum(dim=1).clamp(max=torch.finfo(torch.float64).max / 2)
