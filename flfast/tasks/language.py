"""Language: the next token at every position; cross-entropy, accuracy and perplexity per token.

An exact match is an example all of whose tokens are right, each one given the true ones before it.

Positions whose target is `IGNORED`, such as padding, weigh nothing. A mean is over the tokens that
count, so an example with more of them weighs more.
"""

import torch
from torch import Tensor

from flfast.tasks.factored_logits import FactoredLogits, token_losses
from flfast.tasks.task_type import IGNORED, Statistics, TaskType, group_means

Logits = Tensor | FactoredLogits
"""[B, T, C]."""


def _check(targets: Tensor, vocabulary: int) -> None:
    if targets.ndim != 2 or targets.is_floating_point():
        kind = str(targets.dtype).removeprefix("torch.")
        raise ValueError(
            f"targets of a language task must be int64 [N, T], got {kind} {list(targets.shape)}"
        )
    counted = targets != IGNORED
    if not bool(counted.any(dim=1).all()):
        first = int((~counted.any(dim=1)).nonzero()[0])
        raise ValueError(f"example {first} has no target: all of its positions are {IGNORED}")
    found = targets[counted]
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= vocabulary:
        outside = counted & ((targets < 0) | (targets >= vocabulary))
        raise ValueError(
            f"target tokens must lie in [0, {vocabulary}), got {low} to {high}; the first outside "
            f"is in example {int(outside.nonzero()[0, 0])} (the first is 0)"
        )


def _counts(targets: Tensor) -> Tensor:
    return (targets != IGNORED).sum(dim=1)


def _losses(logits: Logits, targets: Tensor) -> Tensor:
    return _token_losses(logits, targets).sum(dim=1) / _counts(targets)


def _loss(logits: Logits, targets: Tensor) -> Tensor:
    return _token_losses(logits, targets).sum() / _counts(targets).sum()


def _token_losses(logits: Logits, targets: Tensor) -> Tensor:
    """Cross-entropy at every position [B, T], 0 where nothing is to predict."""
    if isinstance(logits, FactoredLogits):
        return logits.losses(targets)
    return token_losses(logits.flatten(0, 1), targets.flatten()).view_as(targets)


def _statistics(logits: Logits, targets: Tensor) -> Statistics:
    if isinstance(logits, FactoredLogits):
        hits = logits.hits(targets)
    else:
        logits = logits.float()
        hits = logits.argmax(dim=2) == targets
    counts = _counts(targets)
    right = (hits.sum(dim=1) / counts).float()
    return {"loss": _losses(logits, targets), "accuracy": right, "counts": counts}


def _by_group(statistics: Statistics, group: Tensor, num_groups: int) -> dict[str, Tensor]:
    loss, accuracy = (
        group_means(statistics[name], group, num_groups, weights=statistics["counts"])
        for name in ("loss", "accuracy")
    )
    has_any = statistics["counts"] > 0
    exact = group_means((statistics["accuracy"] == 1).float(), group, num_groups, weights=has_any)
    return {"loss": loss, "accuracy": accuracy, "perplexity": loss.exp(), "exact_match": exact}


LANGUAGE = TaskType(
    name="language",
    check_targets=_check,
    output_shape=lambda targets, vocabulary: (*targets.shape, vocabulary),
    losses=_losses,
    loss=_loss,
    counts=_counts,
    no_predictions=lambda vocabulary: (
        torch.zeros(0, 1, vocabulary),
        torch.zeros(0, 1, dtype=torch.int64),
    ),
    statistics=_statistics,
    by_group=_by_group,
    pooled=("perplexity", "exact_match"),
    reads_factors=True,
)
"""Inputs are tokens, int64 [N, T]; targets int64 [N, T]; outputs logits [B, T, C]."""
