"""Names of tasks and of their metrics. Torch-free."""

import math
from typing import Literal

TaskName = Literal[
    "classification",
    "language",
    "regression",
    "multilabel",
    "survival",
    "forecasting",
    "segmentation",
    "module",
]

METRICS: dict[TaskName, tuple[str, ...]] = {
    "classification": ("loss", "accuracy", "auc"),
    "language": ("loss", "accuracy", "perplexity", "exact_match"),
    "regression": ("loss", "mae", "r2"),
    "multilabel": ("loss", "accuracy", "f1", "auc"),
    "survival": ("loss", "concordance"),
    "forecasting": ("loss", "mae", "rmse", "mase"),
    "segmentation": ("loss", "dice", "iou", "pixel_accuracy"),
    "module": (),
}
"""Metrics of every task, in the order of their columns."""

HEADLINES: dict[TaskName, str] = {
    "classification": "accuracy",
    "language": "accuracy",
    "regression": "loss",
    "multilabel": "accuracy",
    "survival": "concordance",
    "forecasting": "mase",
    "segmentation": "dice",
    "module": "loss",
}
"""The metric that models of a task are compared by."""

_FALLING = {"loss", "mae", "rmse", "mase", "perplexity"}

SCORES = tuple(dict.fromkeys(name for name in HEADLINES.values() if name != "loss"))
"""The metrics that runs are compared by where they measure one; else by a loss."""

CLIENT_METRICS = {
    "accuracy": "an accuracy",
    "mase": "a mean absolute scaled error",
    "mae": "a mean absolute error",
    "concordance": "a concordance",
    "dice": "a Dice coefficient",
}
"""The metrics that reports compare clients by, and their names in titles: of each task one, and of
several that were measured the first."""


def in_range(name: str, value: float) -> bool:
    """Whether a metric can have a value: NaN where it is not defined, and where a model diverged.

    >>> in_range("accuracy", 1.5), in_range("r2", -3.0), in_range("mae", float("nan"))
    (False, True, True)
    """
    low = -math.inf if name in {"loss", "r2"} else 0.0
    high = math.inf if name in _FALLING else 1.0 + 1e-6
    return math.isnan(value) or low <= value <= high


def falls(column: str) -> bool:
    """Whether a smaller value of a metric or of its column is better.

    >>> falls("val/loss"), falls("local/loss_worst10"), falls("val/accuracy"), falls("mae")
    (True, True, False, True)
    """
    return column.rpartition("/")[2].partition("_")[0] in _FALLING
