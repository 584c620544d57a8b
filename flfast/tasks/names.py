"""Names of tasks and of their metrics. Torch-free."""

import math
import re
from collections.abc import Iterable
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
"""Metrics of every task, in the order of their columns. Those of a module are what it logs."""

ALL_METRICS = tuple(dict.fromkeys(name for names in METRICS.values() for name in names))

SCORES = ("accuracy", "concordance", "mase", "dice")
"""The metrics that runs are compared by where they measure one; else by a loss; see `headline`."""

_FALLING = (
    *("loss", "error", "err", "mae", "mse", "rmse", "mase", "mape", "smape", "msle", "crps"),
    *("nll", "negative_log_likelihood", "ce", "bce", "cross_entropy", "kl", "perplexity", "ppl"),
    *("wer", "cer", "eer", "fid", "lpips", "brier", "ece"),
)
"""Words in names of metrics of which a smaller value is better."""

_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

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
    low = 0.0 if name in ALL_METRICS and name not in {"loss", "r2"} else -math.inf
    high = 1.0 + 1e-6 if name in ALL_METRICS and not falls(name) else math.inf
    return math.isnan(value) or low <= value <= high


def falls(column: str) -> bool:
    """Whether a smaller value of a metric or of its column is better.

    So it is if a word of the name says it. Of any other name of a user's, a larger value is.

    >>> falls("val/loss"), falls("local/loss_worst10"), falls("val/accuracy"), falls("mae")
    (True, True, False, True)
    >>> falls("val/dice_loss"), falls("val/MeanSquaredError"), falls("val/lossless")
    (True, True, False)
    """
    words = "_".join(_WORD.findall(column)).lower()
    return any(f"_{word}_" in f"_{words}_" for word in _FALLING)


def in_order(names: Iterable[str]) -> list[str]:
    """Names of metrics, each once: scores, other metrics of flfast, and others as they came."""
    places = {name: n for n, name in enumerate(dict.fromkeys((*SCORES, *ALL_METRICS)))}
    return sorted(dict.fromkeys(names), key=lambda name: places.get(name, len(places)))


def headline(names: Iterable[str]) -> str:
    """The metric that models are compared by: a score, else a loss, else the first; may be empty.

    >>> headline(["f2", "loss", "accuracy"]), headline(["f2", "loss"]), headline(["f2", "f3"])
    ('accuracy', 'loss', 'f2')
    """
    found = in_order(names)
    return next((n for n in found if n in {*SCORES, "loss"}), next(iter(found), ""))
