"""Columns of a dataset of the library `datasets`: inputs, targets and missing values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import check_targets
from flfast.datamodules.missing import missing_rows
from flfast.datamodules.number_range import as_float32
from flfast.datamodules.sources.image_files import READ_ERRORS, UnreadableImageError, image_tensor
from flfast.datamodules.sources.table_files import Columns
from flfast.datamodules.sources.table_targets import Targets, read_targets
from flfast.datamodules.value_names import names_of
from flfast.tasks.task_type import TaskName

if TYPE_CHECKING:
    from datasets import Dataset

ColumnKind = Literal["image", "text", "numbers"]


def column_kind(data: Dataset, name: str) -> ColumnKind:
    """Kind of the values in a column."""
    from datasets import Image, Value

    feature = data.features[name]
    if isinstance(feature, Image):
        return "image"
    if isinstance(feature, Value) and feature.dtype in {"string", "large_string"}:
        return "text"
    return "numbers"


def with_numbers(data: Dataset, columns: Columns, names: Sequence[str]) -> Dataset:
    """The rows with numbers in input columns whose texts are all numbers; blank texts become NaN.

    Raises:
        ValueError: if a column of text is mostly numbers.
    """
    for name in names:
        if column_kind(data, name) != "text":
            continue
        columns.refuse_odd_numbers(name, "read the file with data=table")
        if (values := columns.numbers_or_nan(name)) is not None:
            data = data.remove_columns(name).add_column(name, values)
    return data


def read_numbers(data: Dataset, name: str, option: str) -> np.ndarray:
    """A column of numbers, or of lists of numbers of equal shape, [N, ...].

    Raises:
        ValueError: if it holds something else, or does not fit into the memory.
    """
    require_memory(data.data.table.column(name).nbytes, f"data.{option}={name}")
    # Without it, `datasets` makes float32 of float64, where large numbers are infinite.
    kept = {"dtype": np.float64} if _holds_float64(data, name) else {}
    values = data.with_format("numpy", columns=[name], **kept)[:][name]
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"data.{option}={name}: the column is {data.features[name]}; allowed: numbers, or "
            "lists of numbers of equal length, without missing ones"
        )
    return np.asarray(values)


def _holds_float64(data: Dataset, name: str) -> bool:
    kind = data.data.table.column(name).type
    kind = getattr(kind, "storage_type", kind)
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return str(kind) == "double"


def number_inputs(data: Dataset, names: Sequence[str]) -> Tensor:
    """Columns of numbers as inputs [N, ...]; several columns are joined, float32 [N, D].

    Integers of one column of lists stay integers: uint8 as images have, others as tokens.
    """
    columns = [read_numbers(data, name, "inputs") for name in names]
    if len(columns) == 1 and columns[0].ndim > 1:
        values = columns[0]
        if values.dtype.kind in "iu":
            kept = np.uint8 if values.dtype == np.uint8 else np.int64
            return torch.from_numpy(values.astype(kept))
        return torch.from_numpy(as_float32(f"data.inputs={names[0]}", values))
    flat = [
        as_float32(f"data.inputs={name}", values.reshape(len(values), -1))
        for name, values in zip(names, columns, strict=True)
    ]
    return torch.from_numpy(np.concatenate(flat, axis=1))


@dataclass(frozen=True)
class HfImages(TorchDataset[Tensor]):
    """Map-style dataset of uint8 images [channels, H, W] of a column, decoded as `ImageFiles`."""

    data: Dataset
    column: str
    channels: Literal[1, 3]
    image_size: int | None

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Tensor:
        try:
            image = self.data[int(index)][self.column]
            return image_tensor(image, channels=self.channels, image_size=self.image_size)
        except READ_ERRORS as error:
            raise UnreadableImageError(
                f"data.inputs={self.column}: row {index} is no readable image: {error}"
            ) from None


def only_images(data: Dataset, column: str, path: str, *, download: bool) -> Dataset:
    """A column of images alone, since the library opens all images of a row.

    Raises:
        ValueError: if one is to be fetched from another machine.
    """
    import pyarrow.compute as pc

    content, place = (pc.struct_field(data.data.table[column], name) for name in ("bytes", "path"))
    away = pc.and_(pc.is_null(content), pc.match_substring(place, "://"))
    if pc.any(away).as_py() and not download:
        raise ValueError(
            f"data.path={path}: {column} names images elsewhere; allowed: data.download=true"
        )
    return data.select_columns([column])


def hf_targets(
    data: Dataset,
    columns: Columns,
    names: list[str],
    task: TaskName | None,
    classes: Sequence[str] | None = None,
) -> Targets:
    """Targets from columns of classes, numbers, or lists of numbers.

    Without a task, it is chosen as by `read_targets`, with `ClassLabel` columns as classes.
    `classes` are those of a trained model.

    Raises:
        ValueError: if the columns do not fit the task.
    """
    from datasets import ClassLabel, Value

    feature = data.features[names[0]] if len(names) == 1 else None
    if isinstance(feature, ClassLabel) and task in {None, "classification"}:
        values = columns.numbers(names[0]).astype(np.int64)
        named = names_of(feature.names)
        where = f"data.targets={names[0]}"
        check_targets(where, values, "classification", feature.num_classes)
        return Targets("classification", values, feature.num_classes, named)
    if feature is None or isinstance(feature, (ClassLabel, Value)):
        return read_targets(columns, names, task, classes)
    values = read_numbers(data, names[0], "targets")
    values = values.reshape(len(values), -1)
    if task == "regression" or (task is None and values.dtype.kind == "f"):
        return Targets("regression", values.astype(np.float64), values.shape[1])
    if task == "multilabel" and np.isin(values, (0, 1)).all():
        return Targets("multilabel", values.astype(np.uint8), values.shape[1])
    raise ValueError(
        f"data.targets={names[0]} is {feature}; allowed for lists: task=regression, or "
        "multilabel if all numbers are 0 or 1"
    )


def missing_inputs(data: Dataset, name: str) -> np.ndarray:
    """Rows that lack a value of an input column, bool [N]; a text may be empty."""
    missing: np.ndarray = np.array(data.data.table.column(name).is_null())
    if column_kind(data, name) == "numbers" and not missing.all():
        given = np.flatnonzero(~missing)
        part = data if len(given) == len(data) else data.select(given)
        missing[given] = missing_rows(read_numbers(part, name, "inputs"))
    return missing


def missing_targets(data: Dataset, columns: Columns, name: str) -> np.ndarray:
    """Rows that lack a value of a column of targets, bool [N]; a class of -1 is a missing one."""
    from datasets import ClassLabel

    missing = columns.missing(name)
    if isinstance(data.features[name], ClassLabel):
        return missing | np.array([value == -1 for value in columns.values(name)], dtype=bool)
    return missing
