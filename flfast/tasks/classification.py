"""Classification: a class per example, cross-entropy, accuracy and micro-averaged AUC."""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.tasks.task_type import Statistics, TaskType, group_means, micro_auc


def _check(targets: Tensor, num_classes: int) -> None:
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_classes:
        outside = (targets < 0) | (targets >= num_classes)
        raise ValueError(
            f"labels must lie in [0, {num_classes}), got {low} to {high}; the first outside is "
            f"that of example {int(outside.nonzero()[0])} (the first is 0)"
        )


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none")


def _statistics(logits: Tensor, targets: Tensor) -> Statistics:
    log_scores = F.log_softmax(logits.float(), dim=1)
    return {
        "loss": F.nll_loss(log_scores, targets, reduction="none"),
        "scores": log_scores.exp(),  # probabilities [M, C]
        "targets": targets,
    }


def _by_group(statistics: Statistics, group: Tensor, num_groups: int) -> dict[str, Tensor]:
    scores, targets = statistics["scores"], statistics["targets"]
    correct = scores.argmax(dim=1) == targets
    entries = torch.arange(len(targets), device=targets.device) * scores.shape[1] + targets
    return {
        "loss": group_means(statistics["loss"], group, num_groups),
        "accuracy": group_means(correct, group, num_groups),
        "auc": micro_auc(scores, entries, group, num_groups),
    }


CLASSIFICATION = TaskType(
    name="classification",
    check_targets=_check,
    losses=_losses,
    loss=F.cross_entropy,
    no_predictions=lambda num_classes: (
        torch.zeros(0, num_classes),
        torch.zeros(0, dtype=torch.int64),
    ),
    statistics=_statistics,
    by_group=_by_group,
)
"""Targets are int64 [N] in [0, C), outputs logits [B, C]."""
