"""Bulyan: repeated Krum, then the mean of the values that are closest to the median.

El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of Distributed Learning in Byzantium. ICML
2018, section 4. https://arxiv.org/abs/1802.07927

    S: theta = K - 2 f times the upload that Krum selects among those that are left
    result_i = mean of the beta = theta - 2 f values in S that are closest to the median of S

for every coordinate i. Among r uploads, Krum compares with the r - f - 2 nearest ones. The last of
the theta steps leave fewer than Krum's proof asks for. It then compares with two, because two
uploads that are each other's only neighbour would tie. All uploads weigh the same. Ties go to the
first client of the cohort, and to the lower values of a coordinate; what differs by rounding only
is a tie (`state/near_ties.py`).
"""

import numpy as np
import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Robust
from flfast.channel.aggregations.krum import krum_scores
from flfast.state.near_ties import first_lowest
from flfast.state.options import NonNegativeInt
from flfast.state.row_statistics import column_blocks, squared_distances


def bulyan(*, num_byzantine: NonNegativeInt | None) -> Robust:
    """The mean around the median of uploads that Krum selects one after another."""
    min_uploads = 4 * (1 if num_byzantine is None else num_byzantine) + 3

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        most = (len(rows) - 3) // 4 if num_byzantine is None else num_byzantine
        used = _selected(squared_distances(rows), most)
        return Combined(_mean_around_median(rows[used], 2 * most), used)

    given = "null" if num_byzantine is None else num_byzantine
    reason = f"aggregation.num_byzantine={given} needs {min_uploads}"
    return Aggregation("bulyan", combine, min_uploads, reason)


def _selected(squares: Tensor, num_byzantine: int) -> Tensor:
    """Uploads that Krum selects in K - 2 f steps, bool [K], by squared distances [K, K]."""
    num = len(squares)
    used = torch.zeros(num, dtype=torch.bool)
    for _ in range(num - 2 * num_byzantine):
        left = (~used).nonzero().flatten()
        num_neighbours = max(len(left) - num_byzantine - 2, 2)
        scores = krum_scores(squares[left][:, left], num_neighbours)
        used[left[first_lowest(scores)]] = True
    return used


def _mean_around_median(rows: Tensor, num_dropped: int) -> Tensor:
    """Mean [D] of each column without the `num_dropped` values farthest from its median."""
    kept = len(rows) - num_dropped
    means = []
    for block in column_blocks(rows):
        columns = np.sort(np.ascontiguousarray(block.double().numpy().T), axis=1)
        middle = np.median(columns, axis=1)
        # The closest values are neighbours in the sorted column.
        starts = np.arange(num_dropped + 1)
        reach = np.maximum(
            middle[:, None] - columns[:, starts], columns[:, starts + kept - 1] - middle[:, None]
        )
        first = first_lowest(torch.from_numpy(reach)).numpy()[:, None]
        means.append(np.take_along_axis(columns, first + np.arange(kept), axis=1).mean(axis=1))
    return torch.from_numpy(np.concatenate([np.empty(0), *means])).to(rows.dtype)
