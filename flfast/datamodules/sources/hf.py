"""Datasets of the library `datasets`: from Parquet, Arrow, CSV and JSON files, or from a hub."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.number_range import regression_targets
from flfast.datamodules.sources.hf_columns import (
    ColumnKind,
    HfImages,
    column_kind,
    hf_targets,
    missing_inputs,
    missing_targets,
    number_inputs,
    only_images,
    with_numbers,
)
from flfast.datamodules.sources.hf_files import load_splits
from flfast.datamodules.sources.image_files import decode_all
from flfast.datamodules.sources.table_files import Columns
from flfast.datamodules.sources.table_targets import ColumnSource, listed
from flfast.datamodules.sources.text_tokens import (
    Text,
    encode_texts,
    language_examples,
    make_tokenizer,
    padded_tokens,
    token_texts,
)
from flfast.datamodules.transforms import image_transform
from flfast.state.options import Count, Positive, VocabularySize

if TYPE_CHECKING:
    from datasets import Dataset
    from tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Hf(ColumnSource):
    """Rows of a dataset: those for training, then those for testing.

    Inputs are one column of images (uint8 [N, channels, H, W]), one of text (tokens int64
    [N, max_tokens]), or columns of numbers ([N, ...]). Without targets, the next token of the text
    is predicted: a row of text is cut into windows of `max_tokens`.

    `task` is the learning task; None is `classification` for the type `ClassLabel`, for text, and
    for integers of at most 100 different values, else `regression`. A text may be empty: it is no
    missing value. The seed determines a drawn test set.
    """

    name: str | None
    download: bool
    cache_dir: str | None
    inputs: str | list[str]
    train_split: str
    test_split: str | None
    tokenizer: str
    vocabulary_size: VocabularySize
    max_tokens: Count
    image_size: Count | None
    channels: Literal[1, 3]
    in_memory: bool
    mean: list[float]
    std: list[Positive]
    missing: Literal["error", "drop"]

    def load(self) -> Examples:
        """All rows that are complete."""
        data, is_test = self._joined()
        columns = Columns(data.data.table, self.path)
        names = listed(self.inputs)
        columns.require(names, "inputs")
        columns.require(self.goals, "targets")
        columns.require(listed(self.owner), "owner")
        data = with_numbers(data, columns, names)
        kind = self._kind(data)
        data, is_test = self._complete(data, columns, is_test)
        columns = Columns(data.data.table, self.path)
        found = None
        if self.goals:
            found = hf_targets(data, columns, self.goals, self.task, self.kept_classes)
        clients, is_test = self.split_rows(columns, is_test, found)
        if found is None:
            return self._next_tokens(data, is_test, **clients)
        values, where = found.values, f"data.targets={self.targets}"
        if found.task == "regression":
            values = regression_targets(where, values)
        inputs = {"text": self._texts, "image": self._images}.get(kind, self._numbers)
        return Examples(
            **inputs(data, is_test),
            targets=torch.from_numpy(values),
            num_classes=found.num_outputs,
            is_test=is_test,
            task=found.task,
            class_names=found.names,
            **clients,
        )

    def _joined(self) -> tuple[Dataset, np.ndarray | None]:
        """The rows for training followed by those for testing, and which are these, bool [N]."""
        from datasets import concatenate_datasets

        splits = load_splits(
            self.path,
            name=self.name,
            names=self.text_columns,
            download=self.download,
            cache_dir=self.cache_dir,
        )
        name, test_name = self.train_split, self.test_split
        if name not in splits:
            raise ValueError(
                f"data.train_split={name}: {self.path} has the splits {', '.join(splits)}; "
                "allowed: one of these"
            )
        train, test = splits[name], splits.get(test_name or "")
        if not len(train):
            raise ValueError(f"data.path={self.path}: the split {name} has no rows")
        if test is None or test is train or not len(test):
            train = train.flatten_indices() if train._indices is not None else train  # noqa: SLF001
            return train, None
        if train.features != test.features:
            raise ValueError(
                f"data.path={self.path}: {test_name} has other columns than {name}: "
                f"{test.features} and {train.features}"
            )
        joined = concatenate_datasets([train, test])
        return joined, np.arange(len(joined)) >= len(train)

    def _kind(self, data: Dataset) -> ColumnKind:
        """Kind of the values in the input columns."""
        names = listed(self.inputs)
        if both := set(names) & set(self.goals):
            raise ValueError(f"data.inputs and data.targets both name {sorted(both)}")
        kinds = {column_kind(data, name) for name in names}
        if not names or (len(names) > 1 and kinds != {"numbers"}):
            raise ValueError(
                f"data.inputs={names} are {', '.join(sorted(kinds)) or 'no columns'}; allowed: "
                "one column, or several of numbers"
            )
        kind = kinds.pop()
        if kind != "text" and not self.goals:
            raise ValueError(
                "data.targets=null predicts the next token of a text; data.inputs="
                f"{names[0]} holds {'an image' if kind == 'image' else kind}"
            )
        return kind

    def _complete(
        self, data: Dataset, columns: Columns, is_test: np.ndarray | None
    ) -> tuple[Dataset, np.ndarray | None]:
        """The rows that lack no value of a column in use, and the test rows of these, if any."""
        inputs = {f"data.inputs={n}": missing_inputs(data, n) for n in listed(self.inputs)}
        targets = {f"data.targets={n}": missing_targets(data, columns, n) for n in self.goals}
        kept = self.complete(columns, inputs | targets, is_test)
        if kept.all():
            return data, is_test
        rest = None if is_test is None or not is_test[kept].any() else is_test[kept]
        return data.select(np.flatnonzero(kept)).flatten_indices(), rest

    def _numbers(self, data: Dataset, is_test: np.ndarray) -> dict[str, Any]:
        return {"inputs": number_inputs(data, listed(self.inputs))}

    def _images(self, data: Dataset, is_test: np.ndarray) -> dict[str, Any]:
        transform = image_transform(mean=self.mean, std=self.std, channels=self.channels)
        [name], size = listed(self.inputs), self.image_size
        data = only_images(data, name, self.path, download=self.download)
        images = HfImages(data, name, channels=self.channels, image_size=size)
        if size is not None:
            num, setting = (len(images), "data.in_memory=true ") if self.in_memory else (1, "")
            what = f"{setting}data.image_size={size}: {num:,} images"
            require_memory(num * self.channels * size**2, what)
        return {"inputs": decode_all(images) if self.in_memory else images, "transform": transform}

    def _tokenized(self, data: Dataset, is_test: np.ndarray) -> tuple[list[str], Tokenizer]:
        texts, size = list(data[listed(self.inputs)[0]]), self.vocabulary_size
        training = [*compress(texts, ~is_test)]
        return texts, make_tokenizer(self.tokenizer, texts=training, vocabulary_size=size)

    def _texts(self, data: Dataset, is_test: np.ndarray) -> dict[str, Any]:
        texts, made = self._tokenized(data, is_test)
        tokens = padded_tokens(made, texts, self.max_tokens)
        return {"inputs": torch.from_numpy(tokens), "vocabulary": token_texts(made)}

    def _next_tokens(
        self,
        data: Dataset,
        is_test: np.ndarray,
        owner: np.ndarray | None = None,
        client_names: tuple[str, ...] = (),
    ) -> Examples:
        """Windows of every text, one after the other."""
        texts, made = self._tokenized(data, is_test)
        tokens = encode_texts(made, texts)
        if max(map(len, tokens)) < 2:
            raise ValueError("data.inputs: no text has two tokens, so there is no next token")
        clients = np.zeros(len(tokens), dtype=np.int64) if owner is None else owner
        rows = map(Text, tokens, clients.tolist(), is_test.tolist())
        vocabulary, owned = token_texts(made), owner is not None
        found = language_examples(
            [*rows], length=self.max_tokens, vocabulary=vocabulary, owned=owned
        )
        return replace(found, client_names=client_names)
