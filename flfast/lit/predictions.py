"""Predictions of an evaluation pass, collected over batches and ranks by torchmetrics."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat


class Predictions(NamedTuple):
    """Predictions of one pass. M examples, C classes.

    Attributes:
        loss: cross-entropy of each example, float32 [M].
        scores: probabilities, float32 [M, C].
        targets: int64 [M].
    """

    loss: Tensor
    scores: Tensor
    targets: Tensor


class PredictionStore(Metric):
    """Collects predictions batch by batch."""

    full_state_update = False
    loss: list[Tensor]
    scores: list[Tensor]
    targets: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in Predictions._fields:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Add logits [B, C] and targets [B]."""
        log_scores = F.log_softmax(logits.float(), dim=1)
        self.loss.append(F.nll_loss(log_scores, targets, reduction="none"))
        self.scores.append(log_scores.exp())
        self.targets.append(targets)

    def compute(self) -> tuple[Tensor, ...]:
        """All predictions in their order, in the shapes that torchmetrics returns."""
        return tuple(dim_zero_cat(getattr(self, name)) for name in Predictions._fields)

    def collect(self, num_classes: int) -> Predictions:
        """All predictions of all ranks; torchmetrics would squeeze a single one.

        Args:
            num_classes: C, for a rank without predictions.
        """
        if not self.targets:
            self.update(torch.zeros(0, num_classes), torch.zeros(0, dtype=torch.int64))
        return Predictions(*(torch.atleast_1d(tensor) for tensor in self.compute()))
