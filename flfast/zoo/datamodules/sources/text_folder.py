"""Texts with classes in CSV files, as AG News and its siblings are published.

Zhang, Zhao, LeCun: Character-level Convolutional Networks for Text Classification. NeurIPS 2015.
"""

from pathlib import Path

import numpy as np
import torch

from flfast.datamodules.examples import Examples, check_num_classes
from flfast.datamodules.sources.csv_quotes import strict_rows
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.text_tokens import make_tokenizer, padded_tokens, token_texts
from flfast.state.options import BelowOne, Count, VocabularySize
from flfast.state.regular_file import reading, require_file

_FORM = "rows without a header: class from 1, text, more text, ..."


def text_folder(
    *,
    root: str,
    tokenizer: str,
    vocabulary_size: VocabularySize,
    max_tokens: Count,
    test_fraction: BelowOne,
    seed: int,
) -> Examples:
    """Tokens int64 [N, max_tokens] of `root/train.csv`, then of `root/test.csv`.

    A row is a class, counted from 1, and one or more columns of text, which are joined with a
    space. There may be a header. Token 0 is padding. The seed determines a held-out test set.

    Raises:
        ValueError: if a file is missing or has another form, or the tokenizer cannot be read.
    """
    folder = Path(root).expanduser()
    if not (folder / "train.csv").is_file():
        raise ValueError(f"data.root={root} has no train.csv; expected {_FORM}")
    labels, texts = _read(folder / "train.csv")
    num_train, has_test = len(labels), (folder / "test.csv").is_file()
    if has_test:
        test_labels, test_texts = _read(folder / "test.csv")
        labels, texts = [*labels, *test_labels], [*texts, *test_texts]
    num_classes = check_num_classes(max(labels) - 1, len(labels), f"data.root={root}")
    targets = np.array(labels) - 1
    if has_test:
        is_test = np.arange(len(targets)) >= num_train
    else:
        is_test = held_out_test(targets, test_fraction=test_fraction, seed=seed)
    training = [text for text, test in zip(texts, is_test, strict=True) if not test]
    made = make_tokenizer(tokenizer, texts=training, vocabulary_size=vocabulary_size)
    return Examples(
        inputs=torch.from_numpy(padded_tokens(made, texts, max_tokens)),
        targets=torch.from_numpy(targets),
        num_classes=num_classes,
        is_test=is_test,
        vocabulary=token_texts(made),
    )


def _read(path: Path) -> tuple[list[int], list[str]]:
    """Classes from 1, and texts."""
    labels, texts = [], []
    with reading(f"{path} cannot be read"):
        require_file(path)
        with path.open(encoding="utf-8", newline="") as stream:
            for number, row in enumerate(strict_rows(stream), 1):
                if number == 1 and row and not row[0].strip().isdecimal():
                    continue  # a header
                if len(row) < 2 or not row[0].strip().isdecimal() or int(row[0]) < 1:
                    raise ValueError(f"row {number} is {str(row)[:60]}; expected {_FORM}")
                labels.append(int(row[0]))
                # The files write a line break as \n, and AG News as a single backslash.
                texts.append(" ".join(row[1:]).replace("\\n", " ").replace("\\", " "))
    if not labels:
        raise ValueError(f"{path} has no rows; expected {_FORM}")
    return labels, texts
