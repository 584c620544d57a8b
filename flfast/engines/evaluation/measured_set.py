"""An evaluation set with what was predicted and measured on it."""

from typing import NamedTuple

import numpy as np

from flfast.datamodules.evaluation_sets import EvaluationDataModule
from flfast.datamodules.examples import Examples
from flfast.engines.evaluation.metrics import GroupMetrics
from flfast.tasks.task_type import Statistics


class MeasuredSet(NamedTuple):
    """An evaluation set with its predictions, of a single rank. m examples, C classes.

    Attributes:
        data: the pass that it belongs to.
        name: name of the set, the prefix of its metrics.
        metrics: metrics of each client; of one group for a central set.
        predictions: statistics of the predictions by name, each [m, ...]. Of a user's module
            what its `predict_step` returned; may be empty.
    """

    data: EvaluationDataModule
    name: str
    metrics: GroupMetrics
    predictions: Statistics

    @property
    def examples(self) -> np.ndarray:
        """Numbers of the examples in the dataset, int64 [m]."""
        found: np.ndarray = self.data.indices[self.data.sets[self.name].positions]
        return found

    @property
    def clients(self) -> np.ndarray:
        """Client of each example, int64 [m]; -1 for a central set."""
        return self.data.sets[self.name].group

    @property
    def dataset(self) -> Examples:
        """The dataset: its task, names of classes, windows of series."""
        return self.data.data.examples

    @property
    def client_names(self) -> tuple[str, ...]:
        """Name of each client; empty if unknown."""
        return self.data.data.client_names

    @property
    def predicted(self) -> np.ndarray:
        """The class with the largest score, int64 [m]; of a classification."""
        found: np.ndarray = self.predictions["scores"].argmax(dim=1).numpy()
        return found

    def confusion(self) -> np.ndarray:
        """Examples by class and predicted class, int64 [C, C]; of a classification."""
        num_classes = self.predictions["scores"].shape[1]
        pairs = self.predictions["targets"].numpy() * num_classes + self.predicted
        return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
