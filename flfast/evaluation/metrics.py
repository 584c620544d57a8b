"""Metrics of an evaluation pass by group, usually by client.

torchmetrics has neither micro-averaged multi-class AUC nor metrics by group. Tests compare ours
with torchmetrics and scikit-learn.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from flfast.datamodules.evaluation_sets import EvaluationSet
from flfast.lit.predictions import Predictions


class GroupMetrics(NamedTuple):
    """Metrics of G groups; NaN for empty groups.

    Attributes:
        num_examples: int64 [G].
        loss: mean cross-entropy [G].
        accuracy: top-1 accuracy [G].
        auc: micro-averaged area under the ROC curve [G].
    """

    num_examples: Tensor
    loss: Tensor
    accuracy: Tensor
    auc: Tensor


def set_metrics(predictions: Predictions, part: EvaluationSet) -> GroupMetrics | None:
    """Metrics of an evaluation set by group, on the CPU; None if it has no examples.

    Args:
        predictions: of the whole pass.
        part: the set.
    """
    if not len(part.positions):
        return None
    device = predictions.loss.device
    positions = torch.from_numpy(part.positions).to(device)
    chosen = Predictions(*(tensor[positions] for tensor in predictions))
    group = torch.from_numpy(part.group).to(device)
    metrics = group_metrics(chosen, group, part.num_groups)
    return GroupMetrics(*(tensor.cpu() for tensor in metrics))


def group_metrics(predictions: Predictions, group: Tensor, num_groups: int) -> GroupMetrics:
    """Metrics of M predictions by group.

    Args:
        predictions: of M examples.
        group: int64 [M], in [0, num_groups).
        num_groups: G.
    """
    count = torch.bincount(group, minlength=num_groups)
    correct = predictions.scores.argmax(dim=1) == predictions.targets
    total = torch.zeros(2, num_groups, dtype=torch.float64, device=group.device)
    total[0].index_add_(0, group, predictions.loss.double())
    total[1].index_add_(0, group, correct.double())
    loss, accuracy = total / count
    return GroupMetrics(count, loss, accuracy, _micro_auc(predictions, group, num_groups))


def _micro_auc(predictions: Predictions, group: Tensor, num_groups: int) -> Tensor:
    """AUC over all (example, class) pairs: the Mann-Whitney statistic of mid-ranks, [G]."""
    num_classes = predictions.scores.shape[1]
    # (group, score) in one integer: the bits of non-negative floats sort like the floats. NaN, as
    # diverged models predict, counts as 0.
    scores = predictions.scores.nan_to_num(0.0)
    keys = (group[:, None] << 32) + scores.contiguous().view(torch.int32)
    positive = keys.gather(1, predictions.targets[:, None]).squeeze(1)
    keys = keys.flatten().sort().values
    positive = positive.sort().values  # sorted queries hit the cache
    group = positive >> 32
    below = torch.searchsorted(keys, positive)
    upto = torch.searchsorted(keys, positive, right=True)
    num_positive = torch.bincount(group, minlength=num_groups).double()
    pairs = num_positive * num_classes
    before = pairs.cumsum(0) - pairs
    rank_sum = torch.zeros(num_groups, dtype=torch.float64, device=group.device)
    rank_sum.index_add_(0, group, (below + upto + 1) / 2 - before[group])
    statistic = rank_sum - num_positive * (num_positive + 1) / 2
    return statistic / (num_positive * (pairs - num_positive))


def summary(metrics: GroupMetrics) -> dict[str, float]:
    """Means over examples, and the spread of accuracy over non-empty groups.

    Returns:
        `loss`, `accuracy` and `auc`, weighted by examples. Unweighted: `accuracy_std`, and
        `accuracy_worst10`, the mean of the worst tenth of the groups (at least one).
    """
    filled = metrics.num_examples > 0
    num = metrics.num_examples[filled].double()
    means = {
        name: float((getattr(metrics, name)[filled] * num).sum() / num.sum())
        for name in ("loss", "accuracy", "auc")
    }
    accuracy = metrics.accuracy[filled]
    worst = accuracy.sort().values[: max(1, round(0.1 * len(accuracy)))]
    return {
        **means,
        "accuracy_std": float(accuracy.std(correction=0)),
        "accuracy_worst10": float(worst.mean()),
    }
