"""Predictions of an evaluation pass, collected over batches by torchmetrics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from flfast.datamodules.batches import Batch
from flfast.state.tree import to_host
from flfast.tasks.task_type import Statistics, TaskType

Predict = Callable[[Batch], Any]
"""A batch -> outputs of the models that predict its examples."""


class PredictionStore(Metric):
    """Collects the task's statistics of predictions batch by batch."""

    full_state_update = False

    def __init__(self, task_type: TaskType) -> None:
        # `engines/evaluation/passes.py` exchanges those of all passes at once.
        super().__init__(sync_on_compute=False)
        self.task_type = task_type
        self.names = list(task_type.statistics(*task_type.no_predictions(1)))
        for name in self.names:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, outputs: Any, targets: Tensor) -> None:
        """Add a batch: what the task reads of the model's outputs, and targets [B, ...]."""
        for name, value in self.task_type.statistics(outputs, targets).items():
            getattr(self, name).append(value)

    def compute(self) -> tuple[Tensor, ...]:
        """All statistics in their order, in the shapes that torchmetrics returns."""
        return tuple(dim_zero_cat(getattr(self, name)) for name in self.names)

    def collect(self, num_classes: int) -> Statistics:
        """All predictions of this rank, on the CPU; torchmetrics would squeeze a single one."""
        if not getattr(self, self.names[0]):
            self.update(*self.task_type.no_predictions(num_classes))
        # The shapes of examples, since a single one may be a single number.
        none = self.task_type.statistics(*self.task_type.no_predictions(num_classes))
        found = to_host(dict(zip(self.names, self.compute(), strict=True)))
        return {name: rows.view(-1, *none[name].shape[1:]) for name, rows in found.items()}


class PredictingModule(L.LightningModule):
    """A model whose predictions a Trainer collects.

    Attributes:
        model: predicts; see `task_type` for its outputs.
        task_type: says what is kept of them.
    """

    def __init__(self, model: nn.Module, task_type: TaskType) -> None:
        super().__init__()
        self.model, self.task_type = model, task_type
        self._predict: Predict | None = None
        self._predictions: PredictionStore | None = None

    @contextmanager
    def predicting(self, predict: Predict, predictions: PredictionStore) -> Iterator[None]:
        """Tests of the Trainer collect, within the context, what `predict` makes of batches."""
        # As a part of the module, the store is moved with it.
        self._predict, self._predictions = predict, predictions
        try:
            yield
        finally:
            self._predict = self._predictions = None

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Predict a batch; see `predicting`."""
        assert self._predict is not None and self._predictions is not None
        outputs = self._predict(batch)
        if batch.rank_factor:
            self._predictions.update(outputs, batch.targets)
