"""Micro-averaged area under the ROC curve, by group.

torchmetrics has it neither for several classes nor by group. Tests compare ours with torchmetrics
and scikit-learn.
"""

import torch
from torch import Tensor


def micro_auc(scores: Tensor, positive: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """AUC over all (example, column) pairs: the Mann-Whitney statistic of mid-ranks, [G].

    Scores are >= 0, float32 [M, C]; `positive` are numbers, int64, of their flat entries.
    """
    num_columns = scores.shape[1]
    # (group, score) in one integer: the bits of non-negative floats sort like the floats. NaN, as
    # diverged models predict, counts as 0.
    scores = scores.nan_to_num(0.0)
    keys = ((group[:, None] << 32) + scores.contiguous().view(torch.int32)).flatten()
    chosen = keys[positive].sort().values  # sorted queries hit the cache
    keys = keys.sort().values
    group_of = chosen >> 32
    below = torch.searchsorted(keys, chosen)
    upto = torch.searchsorted(keys, chosen, right=True)
    num_positive = torch.bincount(group_of, minlength=num_groups).double()
    pairs = torch.bincount(group, minlength=num_groups).double() * num_columns
    before = pairs.cumsum(0) - pairs
    rank_sum = torch.zeros(num_groups, dtype=torch.float64, device=group.device)
    rank_sum.index_add_(0, group_of, (below + upto + 1) / 2 - before[group_of])
    statistic = rank_sum - num_positive * (num_positive + 1) / 2
    return statistic / (num_positive * (pairs - num_positive))
