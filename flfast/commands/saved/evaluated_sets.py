"""Evaluates a saved run: predictions and metrics of every example of the chosen sets."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flfast.commands.saved.opened_run import OpenedRun, refused
from flfast.config.errors import ConfigError
from flfast.datamodules.evaluation_sets import EvaluationDataModule
from flfast.engines.evaluation.metrics import GroupMetrics, set_metrics
from flfast.engines.evaluation.module_evaluation import MeasuredSet
from flfast.tasks.task_type import Statistics, TaskType

SPLITS: dict[str, dict[bool, tuple[str, ...]]] = {
    "test": {False: ("global", "local", "new"), True: ("personal",)},
    "val": {False: ("val",), True: ("personal_val",)},
    "train": {False: ("train",), True: ("personal_train",)},
    "global": {False: ("global",), True: ()},
}
"""Names of evaluation sets by split, and by whether clients' own models predict."""

_FINETUNED = ("finetuned", "new_finetuned")


class EvaluatedSet(NamedTuple):
    """An evaluation set with its predictions. m examples, C classes.

    Attributes:
        name: name of the set, the prefix of its metrics.
        examples: numbers of the examples in the dataset, int64 [m].
        clients: client of each example, int64 [m]; 0 for the central test set.
        task_type: says what the predictions are.
        predictions: statistics of the predictions by name, each [m, ...].
        metrics: metrics of each client; of one group for the central test set.
        class_names: name of each class; empty if unknown.
        client_names: name of each client; empty if unknown.
        windows: steps between the beginnings of windows, and horizon, of a forecasting task.
    """

    name: str
    examples: np.ndarray
    clients: np.ndarray
    task_type: TaskType
    predictions: Statistics
    metrics: GroupMetrics
    class_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()
    windows: tuple[int, int] = (1, 1)

    @property
    def by_client(self) -> bool:
        """Whether every example belongs to a client."""
        return self.name != "global"

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


def evaluate(run: OpenedRun, split: str) -> list[EvaluatedSet]:
    """Predict all examples of a split; with `finetune_epochs`, `test` also has fine-tuned models.

    Raises:
        ConfigError: if there are no such examples.
    """
    names = SPLITS[split][run.personal]
    if not names:
        raise ConfigError(f"split={split} with personal=true: allowed: test, val or train")
    passes = [names]
    if split == "test" and run.saved.config.finetune_epochs:
        passes.append(_FINETUNED)
    named = run.data.client_names
    task_type = run.learner.module.task_type
    if task_type.name == "module":
        parts = refused(lambda: run.engine.measure(run.server, run.plan, passes))
        found = [_of_module(one, task_type, named) for one in parts]
    else:
        found = _predicted(run, passes)
    if not found:
        raise ConfigError(f"split={split}: there are no such examples; see split.val, split.test")
    return found


def _of_module(one: MeasuredSet, task_type: TaskType, clients: tuple[str, ...]) -> EvaluatedSet:
    part, names = one.part, one.data.data.examples.class_names
    numbers = one.data.indices[part.positions]
    facts = (task_type, one.predictions, one.metrics, names, clients)
    return EvaluatedSet(one.name, numbers, part.group, *facts)


def _predicted(run: OpenedRun, passes: Sequence[tuple[str, ...]]) -> list[EvaluatedSet]:
    named = run.data.client_names
    predicted = run.engine.predict(run.server, run.plan, passes)
    return refused(lambda: [part for data, all_ in predicted for part in _sets(data, all_, named)])


def _sets(
    data: EvaluationDataModule, predictions: Statistics, clients: tuple[str, ...]
) -> list[EvaluatedSet]:
    examples, found = data.data.examples, []
    task_type, names = examples.task_type, examples.class_names
    for name, part in data.sets.items():
        metrics = set_metrics(task_type, predictions, part)
        if metrics is not None:
            chosen = {key: value[part.positions].cpu() for key, value in predictions.items()}
            facts = (task_type, chosen, metrics, names, clients)
            windows = (examples.stride or 1, examples.horizon)
            numbers = data.indices[part.positions]
            found.append(EvaluatedSet(name, numbers, part.group, *facts, windows))
    return found
