"""Predictions of an evaluation pass, collected over batches by torchmetrics."""

from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from flfast.tasks.task_type import Statistics, TaskType


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
        """All predictions of this rank; torchmetrics would squeeze a single one."""
        if not getattr(self, self.names[0]):
            self.update(*self.task_type.no_predictions(num_classes))
        # The shapes of examples, since a single one may be a single number.
        none = self.task_type.statistics(*self.task_type.no_predictions(num_classes))
        found = zip(self.names, self.compute(), strict=True)
        return {name: tensor.view(-1, *none[name].shape[1:]) for name, tensor in found}
