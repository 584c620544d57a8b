"""Several labels per example: binary cross-entropy, accuracy per label, micro-averaged F1, AUC."""

from torch import Tensor
from torch.nn import functional as F

from flfast.tasks.task_type import Statistics, TaskType, group_means, group_sums, micro_auc


def _check(targets: Tensor, num_labels: int) -> None:
    if targets.ndim != 2 or targets.shape[1] != num_labels:
        raise ValueError(
            f"targets of a multilabel task must be [N, {num_labels}], got {list(targets.shape)}"
        )
    if not bool(((targets == 0) | (targets == 1)).all()):
        raise ValueError("targets of a multilabel task must be 0 or 1")


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    targets = targets.to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))


def _statistics(logits: Tensor, targets: Tensor) -> Statistics:
    logits = logits.float()
    return {
        "loss": _losses(logits, targets),
        "scores": logits.sigmoid(),
        "targets": targets.byte(),
    }


def _by_group(statistics: Statistics, group: Tensor, num_groups: int) -> dict[str, Tensor]:
    scores, targets = statistics["scores"], statistics["targets"].bool()
    predicted = scores > 0.5
    hits, chosen, present = (
        group_sums(mask.sum(dim=1), group, num_groups)
        for mask in (predicted & targets, predicted, targets)
    )
    return {
        "loss": group_means(statistics["loss"], group, num_groups),
        "accuracy": group_means(predicted == targets, group, num_groups).mean(dim=1),
        "f1": 2 * hits / (chosen + present),
        "auc": micro_auc(scores, targets.flatten().nonzero().flatten(), group, num_groups),
    }


MULTILABEL = TaskType(
    name="multilabel",
    check_targets=_check,
    losses=_losses,
    loss=_loss,
    statistics=_statistics,
    by_group=_by_group,
    pooled=("f1",),
)
"""Targets are [N, C] of 0 and 1, outputs logits [B, C]. Accuracy is the share of right labels."""
