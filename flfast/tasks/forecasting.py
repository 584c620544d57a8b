"""Forecasting: the next values of series; MAE and RMSE in units of the data, and MASE.

Hyndman, Koehler: Another look at measures of forecast accuracy. International Journal of
Forecasting 22, 2006.

    MASE = mean |y - forecast| / mean over the client's training steps t of |y_t - y_(t - season)|

It is below 1 if forecasts are better than the seasonal naive one was in training. Models see
values scaled by client. A target brings what undoes the scaling, so errors of examples add up
over batches, ranks and clients.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from flfast.tasks.task_type import Statistics, TaskType, group_means

Losses = Callable[[Tensor, Tensor], Tensor]

FACTS = 3
"""Rows of a target behind the H future values: mean, standard deviation, naive error."""


def _check(targets: Tensor, num_outputs: int) -> None:
    fits = targets.ndim == 3 and (targets.shape[1] - FACTS) * targets.shape[2] == num_outputs
    if not fits or not targets.is_floating_point():
        raise ValueError(
            "targets of a forecasting task must be floats [N, H + 3, C] with H * C = "
            f"{num_outputs}: H scaled values, mean, standard deviation and naive error of C "
            f"columns; got {str(targets.dtype).removeprefix('torch.')} {list(targets.shape)}"
        )
    right = targets.isfinite().flatten(1).all(dim=1) & (targets[:, -2:] > 0).flatten(1).all(dim=1)
    if not bool(right.all()):
        raise ValueError(
            f"the target of example {int((~right).nonzero()[0])} has a value that is not finite, "
            "or a standard deviation or naive error <= 0"
        )


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Scaled errors [B, H * C]; outputs are in the order of the targets, step by step."""
    return outputs - targets[:, :-FACTS].flatten(1)


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return _errors(outputs, targets).square().mean(dim=1)


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return _errors(outputs, targets).abs().mean(dim=1)


def _statistics(outputs: Tensor, targets: Tensor, losses: Losses = _squared) -> Statistics:
    outputs, targets = outputs.float(), targets.float()
    future, (mean, std, naive) = targets[:, :-FACTS], targets[:, -FACTS:, None].unbind(dim=1)
    scaled = _errors(outputs, targets).view_as(future)
    errors = scaled * std  # not a difference of large numbers
    return {
        "loss": losses(outputs, targets),
        "absolute": errors.abs().mean(dim=(1, 2)),
        "squared": errors.square().mean(dim=(1, 2)),
        "scaled": (scaled / naive).abs().mean(dim=(1, 2)),
        "outputs": (outputs.view_as(future) * std + mean).flatten(1),
        "targets": (future * std + mean).flatten(1),
    }


def _by_group(statistics: Statistics, group: Tensor, num_groups: int) -> dict[str, Tensor]:
    loss, mae, squared, mase = (
        group_means(statistics[name], group, num_groups)
        for name in ("loss", "absolute", "squared", "scaled")
    )
    return {"loss": loss, "mae": mae, "rmse": squared.sqrt(), "mase": mase}


FORECASTING = TaskType(
    name="forecasting",
    check_targets=_check,
    losses=_squared,
    loss=lambda outputs, targets: _squared(outputs, targets).mean(),
    no_predictions=lambda num_outputs: (
        torch.zeros(0, num_outputs),
        torch.zeros(0, num_outputs + FACTS, 1),
    ),
    statistics=_statistics,
    by_group=_by_group,
    pooled=("rmse",),
)
"""Targets are floats [N, H + 3, C]: the next H values of C columns, scaled; then mean and standard
deviation that undo the scaling, and the scaled naive error of MASE. Outputs are [B, H * C]."""

OBJECTIVES = {
    "mse": FORECASTING,
    "mae": replace(
        FORECASTING,
        losses=_absolute,
        loss=lambda outputs, targets: _absolute(outputs, targets).mean(),
        statistics=partial(_statistics, losses=_absolute),
    ),
}
"""The task by the name of its loss."""
