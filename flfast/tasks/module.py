"""The task of a LightningModule that says itself how it learns, and what it measures."""

from typing import Any, NoReturn

from torch import Tensor

from flfast.tasks.task_type import TaskType


def _check_nothing(targets: Tensor, num_classes: int) -> None:
    """What its batches hold is the module's matter."""


def _not_ours(*given: Any) -> NoReturn:
    raise NotImplementedError("task=module: loss and metrics are the module's own")


MODULE = TaskType(
    name="module",
    check_targets=_check_nothing,
    losses=_not_ours,
    loss=_not_ours,
    statistics=lambda outputs, targets: {"targets": targets},
    by_group=_not_ours,
    padded=False,
)
"""The task `module`. `logged` has what a module measures, once it was tried."""
