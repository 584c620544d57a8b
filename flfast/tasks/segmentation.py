"""Segmentation: a class per pixel; cross-entropy plus soft Dice, Dice, IoU and pixel accuracy.

Milletari, Navab, Ahmadi: V-Net: Fully Convolutional Neural Networks for Volumetric Medical Image
Segmentation. 3DV 2016, section 3. https://arxiv.org/abs/1606.04797

    D_c = (2 sum_i p_ic g_ic + 1) / (sum_i p_ic^2 + sum_i g_ic + 1)
    loss = mean_i CE_i + dice_weight * (1 - mean of D_c over the classes c > 0)

i are the pixels of an image, p_ic the chance of class c there, and g_ic is 1 in the mask of c. The
paper has one class and no 1, which makes a class perfect that is neither there nor predicted.
"""

from functools import lru_cache, partial

import torch
from torch import Tensor

from flfast.tasks.task_type import IGNORED, Statistics, TaskType, group_means, group_sums


def _check(targets: Tensor, num_classes: int) -> None:
    if targets.ndim != 3 or targets.is_floating_point():
        kind = str(targets.dtype).removeprefix("torch.")
        raise ValueError(
            f"masks of a segmentation task must be integers [N, H, W], got {kind} "
            f"{list(targets.shape)}"
        )
    if num_classes < 2:
        raise ValueError("a segmentation task has the background and at least one class")
    # A byte is compared modulo 256: with 300 classes, 50 is larger than 299.
    last = min(num_classes - 1, torch.iinfo(targets.dtype).max)
    outside = (targets > last) | ((targets < 0) & (targets != IGNORED))
    if bool(outside.any()):
        image, row, column = outside.nonzero()[0].tolist()
        raise ValueError(
            f"the mask of example {image} (the first is 0) has the value "
            f"{int(targets[image, row, column])} in row {row}, column {column}; allowed: 0 to "
            f"{num_classes - 1}, or {IGNORED} where nothing is to predict"
        )
    empty = ~_counted(targets).flatten(1).any(dim=1)
    if bool(empty.any()):
        raise ValueError(
            f"example {int(empty.nonzero()[0])} has no target: all of its pixels are {IGNORED}"
        )


def main_classes(masks: Tensor) -> Tensor:
    """Most frequent class but the background of each mask, int64 [N]; 0 where there is none."""
    counts = (torch.bincount(mask[mask > 0], minlength=1) for mask in masks)
    return torch.stack([count.argmax() for count in counts])


def _counted(targets: Tensor) -> Tensor:
    # Not `!= IGNORED`, which a byte can equal: torch would compare it with -100 modulo 256.
    return targets >= 0


def _losses(logits: Tensor, targets: Tensor, dice_weight: float) -> Tensor:
    """Mean cross-entropy of each image's pixels plus `dice_weight` times (1 - soft Dice), [B]."""
    # Sums over pixels of 16-bit numbers would be too inexact.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_chances = logits.to(dtype).log_softmax(dim=1)
    counted = _counted(targets).unsqueeze(1).to(dtype)  # [B, 1, H, W]
    classes = torch.arange(logits.shape[1], device=logits.device).view(-1, 1, 1)
    # One-hot masks without `F.one_hot`, for which vmap has no rule. Zeros where nothing counts.
    masks = (targets.unsqueeze(1) == classes).to(dtype)  # [B, C, H, W]
    entropy = -(masks * log_chances).sum(dim=(1, 2, 3)) / counted.sum(dim=(1, 2, 3))
    if not dice_weight:
        return entropy
    chances = log_chances.exp() * counted
    overlap = (chances * masks).sum(dim=(2, 3))
    sizes = (chances.square() + masks).sum(dim=(2, 3))
    dice = (2 * overlap + 1) / (sizes + 1)
    return entropy + dice_weight * (1 - dice[:, 1:].mean(dim=1))


def _statistics(logits: Tensor, targets: Tensor, dice_weight: float) -> Statistics:
    """The loss, and numbers of pixels by class, int64 [B, C], which add up over anything."""
    num, num_classes = logits.shape[:2]
    counted, predicted = _counted(targets), logits.argmax(dim=1)
    first = num_classes * torch.arange(num, device=targets.device).view(-1, 1, 1)

    def pixels(classes: Tensor, chosen: Tensor) -> Tensor:
        found = torch.bincount((first + classes)[chosen], minlength=num * num_classes)
        return found.view(num, num_classes)

    return {
        "loss": _losses(logits, targets, dice_weight).float(),
        "overlap": pixels(predicted, counted & (predicted == targets)),
        "predicted": pixels(predicted, counted),
        "targets": pixels(targets, counted),
    }


def _by_group(statistics: Statistics, group: Tensor, num_groups: int) -> dict[str, Tensor]:
    """Dice and IoU of all pixels of a group: means over the classes that are there or predicted.

    The background is none of these classes.
    """
    overlap, predicted, targets = (
        group_sums(statistics[name][:, 1:], group, num_groups)
        for name in ("overlap", "predicted", "targets")
    )
    right = statistics["overlap"].sum(dim=1) / statistics["targets"].sum(dim=1)
    return {
        "loss": group_means(statistics["loss"], group, num_groups),
        "dice": (2 * overlap / (predicted + targets)).nanmean(dim=1),
        "iou": (overlap / (predicted + targets - overlap)).nanmean(dim=1),
        "pixel_accuracy": group_means(right, group, num_groups),
    }


@lru_cache
def segmentation(dice_weight: float) -> TaskType:
    """The task with a weight of the soft Dice loss, >= 0, beside the cross-entropy."""
    return TaskType(
        name="segmentation",
        check_targets=_check,
        output_shape=lambda masks, num_classes: (len(masks), num_classes, *masks.shape[1:]),
        losses=partial(_losses, dice_weight=dice_weight),
        loss=lambda logits, targets: _losses(logits, targets, dice_weight).mean(),
        no_predictions=lambda num_classes: (
            torch.zeros(0, num_classes, 1, 1),
            torch.zeros(0, 1, 1, dtype=torch.int64),
        ),
        statistics=partial(_statistics, dice_weight=dice_weight),
        by_group=_by_group,
        pooled=("dice", "iou"),
    )


SEGMENTATION = segmentation(1.0)
"""Targets are masks, integers [N, H, W] in [0, C) or `IGNORED`; outputs logits [B, C, H, W]. All
images count equally, however many of their pixels are ignored."""
