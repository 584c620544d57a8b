"""`Examples`: a whole dataset, loaded once; clients are index arrays into it, `ClientIndices`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.number_range import check_finite, regression_targets
from flfast.datamodules.preprocessing import TableColumns
from flfast.datamodules.transforms import AS_STORED, BatchTransform
from flfast.tasks.by_name import TASKS
from flfast.tasks.forecasting import FACTS, OBJECTIVES
from flfast.tasks.names import TaskName
from flfast.tasks.segmentation import main_classes, segmentation
from flfast.tasks.task_type import IGNORED, TaskType

log = logging.getLogger(__name__)

_FEW_CLASSES = 1000


@dataclass(frozen=True)
class Examples:
    """A dataset, as returned by a data source. N all examples, C outputs of the model.

    Attributes:
        inputs: tensor [N, ...] (uint8 for images, int64 for tokens), in memory or over a
            memory-mapped file (`mapped.py`), so read rows and do not write; or a map-style
            `Dataset` of input tensors. With `task=module`, samples of any structure; see
            `samples.py`.
        targets: shape and type depend on the task. `classification`: int64 [N] in [0, C).
            `language`: tokens int64 [N, T], `IGNORED` at positions without a target. `regression`:
            float32 [N, C]. `multilabel`: 0 or 1, [N, C]. `survival`: time >= 0, and 1 for an event
            or 0 if it was not seen by then, float32 [N, 2]. `forecasting`: float32 [N, H + 3, C],
            see `flfast/tasks/forecasting.py`. `segmentation`: a class in [0, C) per pixel, or
            `IGNORED`, integers [N, H, W]; 0 is the background. `module`: int64 [N], labels
            or zeros.
        num_classes: C: classes, tokens of the vocabulary, numbers to predict, or labels; 1 of
            `survival`.
        input_shape: shape of one input, without the batch dimension; () reads the first input.
        transform: normalisation and augmentation of batches, on their device.
        is_test: members of the dataset's test set, bool [N]; None if there are none.
        owner: the dataset's own client of every example, int64 [N]; -1 for test examples of no
            client; None if it has no clients.
        task: the learning task, which determines the loss and the metrics.
        labels: classes for partitions by label, int64 [N]; None: the targets of `classification`,
            the most frequent class of a mask but the background, 0 if there is none, and no
            classes for other tasks.
        vocabulary: text of every token, if inputs are tokens; a text is the concatenation of its
            tokens' texts. None if inputs are no tokens, or their text is unknown.
        categories: number of categories of each of the last columns of a table, [N, columns],
            which hold their codes from 0; empty if there are none.
        input_names: name of each column of a table, those of categories with their values; empty
            for other inputs.
        class_names: name of each class; empty if unknown.
        client_names: name of each of the dataset's own clients; empty if unknown.
        unused: examples of no split, such as windows across two series, bool [N]; None: none.
        stride: of windows in the order of time, steps between the beginnings of two; held-out
            examples are then a client's last ones. None: held-out examples are drawn at random.
        objective: the loss of `forecasting`, `mse` or `mae`.
        rescaled: (training examples, int64 [M]) -> the same examples, scaled by these; None if no
            value depends on which examples train.
        datamodule: a user's LightningDataModule, whose hooks change batches; None: there is none.
        is_val: members of the dataset's validation set, bool [N]; None if there is none.
        batch_size: that of the user's own loader of training batches; None: it has none.
        dice_weight: weight of the soft Dice loss of `segmentation`, beside the cross-entropy.
        columns: what became of the columns of a table; None: inputs are no table's.
        rows: row of the file of every example, int64 [N]; None: they are numbered alike.
    """

    inputs: Tensor | Dataset[Tensor]
    targets: Tensor
    num_classes: int
    input_shape: tuple[int, ...] = ()
    transform: BatchTransform = AS_STORED
    is_test: np.ndarray | None = None
    owner: np.ndarray | None = None
    task: TaskName = "classification"
    labels: Tensor | None = None
    vocabulary: tuple[str, ...] | None = None
    categories: tuple[int, ...] = ()
    input_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()
    unused: np.ndarray | None = None
    stride: int | None = None
    objective: Literal["mse", "mae"] = "mse"
    rescaled: Callable[[np.ndarray], "Examples"] | None = None
    dice_weight: float = 1.0
    datamodule: Any = None
    is_val: np.ndarray | None = None
    batch_size: int | None = None
    columns: TableColumns | None = None
    rows: np.ndarray | None = None

    def __post_init__(self) -> None:
        num = len(self.targets)
        if not num:
            raise ValueError("the dataset is empty")
        if self.task == "classification":
            check_scores(self.num_classes, 1 if self.is_test is None else int(self.is_test.sum()))
        self.task_type.check_targets(self.targets, self.num_classes)
        self._read_targets()
        if isinstance(self.inputs, Tensor) and self.inputs.is_floating_point():
            check_finite(self.inputs)
        for name in ("inputs", "is_test", "owner", "labels", "unused", "is_val", "rows"):
            value = getattr(self, name)
            if value is not None and len(value) != num:
                raise ValueError(f"{name} has {len(value)} entries, targets have {num}")
        if self.is_test is not None and not self.is_test.any():
            object.__setattr__(self, "is_test", None)
        shape = self.input_shape
        if not shape and self.task != "module":
            shape = tuple(self.inputs[0].shape)
        object.__setattr__(self, "input_shape", shape)

    def _read_targets(self) -> None:
        if self.task == "regression":
            regression_targets("targets", self.targets.numpy())
        if self.task != "segmentation":
            return
        if self.transform.augments:
            raise ValueError(
                "random crops and flips of images leave their masks as they are; allowed with "
                "task=segmentation: data.random_crop=0 and data.random_flip=false"
            )
        if self.labels is None:
            object.__setattr__(self, "labels", main_classes(self.targets))

    @property
    def task_type(self) -> TaskType:
        """The task: loss and metrics."""
        if self.task == "segmentation":
            return segmentation(self.dice_weight)
        return OBJECTIVES[self.objective] if self.task == "forecasting" else TASKS[self.task]

    @property
    def horizon(self) -> int:
        """Number of steps that `forecasting` predicts; 0 of other tasks."""
        return self.targets.shape[1] - FACTS if self.task == "forecasting" else 0

    @property
    def overlap(self) -> int | None:
        """Number of later windows that share steps with a window; None without a stride."""
        if self.stride is None:
            return None
        return -(-(self.input_shape[-1] + self.horizon) // self.stride) - 1

    @property
    def classes(self) -> np.ndarray | None:
        """Class of every example for partitions by label, int64 [N]; None without labels."""
        if self.labels is None and self.task != "classification":
            return None
        found: np.ndarray = (self.targets if self.labels is None else self.labels).numpy()
        return found

    @cached_property
    def counts(self) -> np.ndarray | None:
        """Targets of each example that count, int64 [N]; None if all examples count equally."""
        count = self.task_type.counts
        if count is None:
            return None
        found: np.ndarray = count(self.targets).numpy()
        return None if (found == found[0]).all() else found

    def num_counted(self, indices: np.ndarray) -> int:
        """Targets that count of some examples, int64 [M]."""
        if self.counts is not None:
            return int(self.counts[indices].sum())
        count = self.task_type.counts
        return len(indices) * (1 if count is None else int(count(self.targets[:1])))


def warn_of_equal_targets(examples: Examples) -> None:
    """Warn if all training targets are equal: there is nothing to learn.

    Targets that are held out later, such as those of `split.val`, count as training targets. What
    a user's module learns is not known.
    """
    if examples.task == "module":
        return
    targets = examples.targets
    if examples.is_test is not None:
        targets = targets[torch.from_numpy(~examples.is_test)]
    found = targets[targets != IGNORED] if examples.task == "language" else targets
    rows = found if found.ndim == 1 else found.flatten(start_dim=1)
    if len(rows) and bool((rows == rows[0]).all()):
        log.warning(
            "all %d training targets are equal (%s): there is nothing to learn, because a model "
            "that always predicts this target is perfect",
            *(len(rows), rows[0].tolist()),
        )


def check_targets(where: str, targets: np.ndarray, task: TaskName, num_outputs: int) -> None:
    """Check targets before something else is derived from them, such as a test set.

    Raises:
        ValueError: if they do not fit the task; names the first example.
    """
    try:
        TASKS[task].check_targets(torch.from_numpy(targets), num_outputs)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def check_scores(num_classes: int, num_test: int) -> None:
    """Check that evaluation fits: it keeps a score of each class and test example."""
    what = f"a score of {num_classes:,} classes for each of {num_test:,} test examples"
    require_memory(4 * num_classes * num_test, what)


def check_num_classes(largest: int, num: int, key: str) -> int:
    """The number of classes that follows from the largest label of `num` examples.

    Raises:
        ValueError: if it exceeds both the number of examples and 1000: labels that are names,
            such as postal codes, would make the model huge.
    """
    if largest >= max(num, _FEW_CLASSES):
        raise ValueError(
            f"{key}: the largest label is {largest} for {num} examples; allowed: labels numbered "
            f"0, 1, ..., below {max(num, _FEW_CLASSES)}"
        )
    return largest + 1


class ClientIndices(NamedTuple):
    """Indices of the examples of all clients, in one array. K clients, M examples.

    Attributes:
        indices: examples, grouped by client, int64 [M].
        offsets: int64 [K + 1]; client k has `indices[offsets[k]:offsets[k + 1]]`.
    """

    indices: np.ndarray
    offsets: np.ndarray

    def indices_of(self, client_id: int) -> np.ndarray:
        """Examples of one client, a view."""
        return self.indices[self.offsets[client_id] : self.offsets[client_id + 1]]

    def sizes(self) -> np.ndarray:
        """Number of examples of each client, int64 [K]."""
        return np.diff(self.offsets)

    def owner(self) -> np.ndarray:
        """Client of each entry of `indices`, int64 [M]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def only(self, clients: np.ndarray) -> "ClientIndices":
        """The examples of the given clients; all other clients have none."""
        if len(clients) == len(self.offsets) - 1:
            return self
        sizes = np.zeros(len(self.offsets) - 1, dtype=np.int64)
        sizes[clients] = self.sizes()[clients]
        kept = self.indices[np.isin(self.owner(), clients)]
        return ClientIndices(kept, np.concatenate([[0], np.cumsum(sizes)]))

    def pooled(self) -> "ClientIndices":
        """One client that has all examples."""
        return ClientIndices(self.indices, np.array([0, len(self.indices)]))

    def with_one_more(self, indices: np.ndarray) -> "ClientIndices":
        """The same clients, and behind the last one another with the given examples."""
        joined = np.concatenate([self.indices, indices])
        return ClientIndices(joined, np.append(self.offsets, len(joined)))


def group_by_client(indices: np.ndarray, owner: np.ndarray, num_clients: int) -> ClientIndices:
    """Group examples int64 [M] by their client, int64 [M] in [0, num_clients)."""
    order = np.argsort(owner, kind="stable")
    offsets = np.zeros(num_clients + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=num_clients), out=offsets[1:])
    return ClientIndices(indices[order], offsets)
