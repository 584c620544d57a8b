"""Regression: numbers; mean squared error, mean absolute error and R²."""

from torch import Tensor
from torch.nn import functional as F

from flfast.tasks.task_type import Statistics, TaskType, group_means


def _check(targets: Tensor, num_outputs: int) -> None:
    if targets.ndim != 2 or targets.shape[1] != num_outputs or not targets.is_floating_point():
        kind = str(targets.dtype).removeprefix("torch.")
        raise ValueError(
            f"targets of a regression task must be float32 [N, {num_outputs}], "
            f"got {kind} {list(targets.shape)}"
        )
    broken = ~targets.isfinite().all(dim=1)
    if bool(broken.any()):
        raise ValueError(f"the target of example {int(broken.nonzero()[0])} is not finite")


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(dim=1)


def _statistics(outputs: Tensor, targets: Tensor) -> Statistics:
    outputs, targets = outputs.float(), targets.float()
    return {"loss": _losses(outputs, targets), "outputs": outputs, "targets": targets}


def _by_group(statistics: Statistics, group: Tensor, num_groups: int) -> dict[str, Tensor]:
    outputs, targets = statistics["outputs"].double(), statistics["targets"].double()
    mean = group_means(targets, group, num_groups)
    squared = group_means((outputs - targets).square(), group, num_groups)
    variance = group_means((targets - mean[group]).square(), group, num_groups)
    explained = 1 - squared.sum(dim=1) / variance.sum(dim=1)
    return {
        "loss": squared.mean(dim=1),
        "mae": group_means((outputs - targets).abs(), group, num_groups).mean(dim=1),
        # R² compares with the mean of the targets, which one example alone equals.
        "r2": explained.masked_fill(variance.sum(dim=1) == 0, float("nan")),
    }


REGRESSION = TaskType(
    name="regression",
    check_targets=_check,
    losses=_losses,
    loss=F.mse_loss,
    statistics=_statistics,
    by_group=_by_group,
    pooled=("r2",),
)
"""Targets are float32 [N, C], outputs [B, C]. R² of several outputs is weighted by variance."""
