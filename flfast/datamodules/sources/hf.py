"""Datasets of the library `datasets`: from Parquet, Arrow, CSV and JSON files, or from a hub."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.number_range import regression_targets
from flfast.datamodules.sources.hf_columns import (
    ColumnKind,
    HfImages,
    column_kind,
    complete_hf_rows,
    hf_targets,
    number_inputs,
    only_images,
    with_numbers,
)
from flfast.datamodules.sources.hf_files import load_splits
from flfast.datamodules.sources.image_files import decode_all
from flfast.datamodules.sources.table_files import Columns
from flfast.datamodules.sources.table_targets import split_rows
from flfast.datamodules.sources.text_tokens import (
    Text,
    encode_texts,
    language_examples,
    make_tokenizer,
    padded_tokens,
    token_texts,
)
from flfast.datamodules.transforms import BatchTransform, image_transform
from flfast.datamodules.value_names import Clients
from flfast.state.options import BelowOne, Count, Positive, VocabularySize
from flfast.tasks.task_type import TaskName

if TYPE_CHECKING:
    from datasets import Dataset


def hf(  # noqa: PLR0913 - one parameter an option
    *,
    path: str,
    name: str | None,
    download: bool,
    cache_dir: str | None,
    inputs: str | list[str],
    targets: str | list[str] | None,
    owner: str | None,
    train_split: str,
    test_split: str | None,
    test_fraction: BelowOne,
    task: TaskName | None,
    tokenizer: str,
    vocabulary_size: VocabularySize,
    max_tokens: Count,
    image_size: Count | None,
    channels: Literal[1, 3],
    in_memory: bool,
    mean: list[float],
    std: list[Positive],
    missing: Literal["error", "drop"],
    seed: int,
) -> Examples:
    """Rows of a dataset: those for training, then those for testing.

    Inputs are one column of images (uint8 [N, channels, H, W]), one of text (tokens int64
    [N, max_tokens]), or columns of numbers ([N, ...]). Without targets, the next token of the text
    is predicted: a row of text is cut into windows of `max_tokens`.

    `task` is the learning task; None is `classification` for the type `ClassLabel`, for text, and
    for integers of at most 100 different values, else `regression`. A text may be empty: it is no
    missing value. The seed determines a drawn test set.

    Raises:
        ValueError: if the dataset cannot be read, or columns are missing or do not fit.
    """
    names, goals = _listed(inputs), _listed(targets)
    texts = [*([owner] if owner else []), *(goals if task in {None, "classification"} else [])]
    splits = load_splits(path, name=name, names=texts, download=download, cache_dir=cache_dir)
    data, rest = _joined(splits, train_split, test_split, path)
    columns = Columns(data.data.table, path)
    columns.require(names, "inputs")
    columns.require(goals, "targets")
    columns.require([owner] if owner else [], "owner")
    data = with_numbers(data, columns, names)
    kind = _kind(data, names, goals)
    data, rest = complete_hf_rows(
        data, columns, rest, inputs=names, targets=goals, owner=owner, missing=missing
    )
    columns = Columns(data.data.table, path)
    found = hf_targets(data, columns, goals, task) if goals else None
    groups = np.zeros(len(data), dtype=np.int64) if found is None else found.groups
    known, is_test = split_rows(
        columns, owner, rest, groups=groups, test_fraction=test_fraction, seed=seed
    )
    transform, vocabulary = BatchTransform(), None
    values: Tensor | TorchDataset[Tensor]
    if kind == "text":
        texts = list(data[names[0]])
        training = [text for text, test in zip(texts, is_test, strict=True) if not test]
        made = make_tokenizer(tokenizer, texts=training, vocabulary_size=vocabulary_size)
        vocabulary = token_texts(made)
        if found is None:
            tokens = encode_texts(made, texts)
            return _language(tokens, is_test, known, length=max_tokens, vocabulary=vocabulary)
        values = torch.from_numpy(padded_tokens(made, texts, max_tokens))
    elif kind == "image":
        transform = image_transform(mean=mean, std=std, channels=channels)
        data = only_images(data, names[0], path, download=download)
        images = HfImages(data, names[0], channels=channels, image_size=image_size)
        if image_size is not None:
            num, setting = (len(images), "data.in_memory=true ") if in_memory else (1, "")
            what = f"{setting}data.image_size={image_size}: {num:,} images"
            require_memory(num * channels * image_size**2, what)
        values = decode_all(images) if in_memory else images
    else:
        values = number_inputs(data, names)
    assert found is not None
    wanted, where = found.values, f"data.targets={targets}"
    wanted = regression_targets(where, wanted) if found.task == "regression" else wanted
    return Examples(
        inputs=values,
        targets=torch.from_numpy(wanted),
        num_classes=found.num_outputs,
        transform=transform,
        is_test=is_test,
        owner=None if known is None else known.owner,
        task=found.task,
        vocabulary=vocabulary,
        class_names=found.names,
        client_names=() if known is None else known.names,
    )


def _joined(
    splits: dict[str, Dataset], train_split: str, test_split: str | None, path: str
) -> tuple[Dataset, np.ndarray | None]:
    """The rows for training followed by those for testing, and which are these, bool [N]."""
    from datasets import concatenate_datasets

    if train_split not in splits:
        raise ValueError(
            f"data.train_split={train_split}: {path} has the splits {', '.join(splits)}; allowed: "
            "one of these"
        )
    train = splits[train_split]
    if not len(train):
        raise ValueError(f"data.path={path}: the split {train_split} has no rows")
    test = splits.get(test_split or "")
    if test is None or test is train or not len(test):
        train = train.flatten_indices() if train._indices is not None else train  # noqa: SLF001
        return train, None
    if train.features != test.features:
        raise ValueError(
            f"data.path={path}: {test_split} has other columns than {train_split}: "
            f"{test.features} and {train.features}"
        )
    joined = concatenate_datasets([train, test])
    return joined, np.arange(len(joined)) >= len(train)


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or [])


def _kind(data: Dataset, names: list[str], targets: list[str]) -> ColumnKind:
    """Kind of the values in the input columns."""
    if both := set(names) & set(targets):
        raise ValueError(f"data.inputs and data.targets both name {sorted(both)}")
    kinds = {column_kind(data, name) for name in names}
    if not names or (len(names) > 1 and kinds != {"numbers"}):
        raise ValueError(
            f"data.inputs={names} are {', '.join(sorted(kinds)) or 'no columns'}; allowed: one "
            "column, or several of numbers"
        )
    kind = kinds.pop()
    if kind != "text" and not targets:
        raise ValueError(
            "data.targets=null predicts the next token of a text; data.inputs="
            f"{names[0]} holds {'an image' if kind == 'image' else kind}"
        )
    return kind


def _language(
    tokens: list[np.ndarray],
    is_test: np.ndarray,
    known: Clients | None,
    *,
    length: int,
    vocabulary: tuple[str, ...],
) -> Examples:
    """Windows of every text, one after the other."""
    if max(map(len, tokens)) < 2:
        raise ValueError("data.inputs: no text has two tokens, so there is no next token")
    clients = np.zeros(len(tokens), dtype=np.int64) if known is None else known.owner
    texts = [
        Text(own, int(client), is_test=bool(test))
        for own, client, test in zip(tokens, clients, is_test, strict=True)
    ]
    found = language_examples(texts, length=length, vocabulary=vocabulary, owned=known is not None)
    return replace(found, client_names=() if known is None else known.names)
