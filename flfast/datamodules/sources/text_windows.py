"""Cuts texts of tokens into windows for the prediction of the next token."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.tasks.task_type import IGNORED

PADDING = 0
"""Token behind the end of a text, in inputs. No target counts there."""


class Text(NamedTuple):
    """A text of one client >= 0, int64 [L], and whether it belongs to the client's test set."""

    tokens: np.ndarray
    owner: int
    is_test: bool


def next_token_windows(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, int64 [ceil((L - 1) / T), T] each, that follow each other in a text [L].

    The target of a position is the token behind it. Every token but the first is the target of
    exactly one position. Behind the end, inputs are `PADDING` and targets `IGNORED`.
    """
    num = max(len(tokens) - 1, 0)
    num_windows = -(-num // length)
    inputs = np.full(num_windows * length, PADDING, dtype=np.int64)
    targets = np.full(num_windows * length, IGNORED, dtype=np.int64)
    inputs[:num], targets[:num] = tokens[:-1][:num], tokens[1:]
    return inputs.reshape(-1, length), targets.reshape(-1, length)


def split_by_time(tokens: np.ndarray, test_share: float) -> tuple[np.ndarray, np.ndarray]:
    """The first part of a text [L] for training and its last part for testing.

    A part without a next token to predict is left out: a text whose last part would have fewer
    than 2 tokens is for training only, and a first part has at least 2 tokens.
    """
    cut = max(round(len(tokens) * (1 - test_share)), 2)
    if len(tokens) - cut < 2:
        cut = len(tokens)
    return tokens[:cut], tokens[cut:]


def language_examples(
    texts: Sequence[Text], *, length: int, vocabulary: tuple[str, ...], owned: bool = True
) -> Examples:
    """Examples of the task `language` from the texts of all clients, `length` tokens each.

    If they are not `owned`, the clients of the texts are unknown.
    """
    num = sum(-(-max(len(text.tokens) - 1, 0) // length) for text in texts)
    require_memory(16 * num * length, f"{num:,} examples of {length:,} tokens")
    windows = [next_token_windows(text.tokens, length) for text in texts]
    counts = [len(inputs) for inputs, _ in windows]
    is_test = np.repeat(np.array([text.is_test for text in texts], dtype=bool), counts)
    owner = np.repeat(np.array([text.owner for text in texts], dtype=np.int64), counts)
    return Examples(
        inputs=torch.from_numpy(np.concatenate([inputs for inputs, _ in windows])),
        targets=torch.from_numpy(np.concatenate([targets for _, targets in windows])),
        num_classes=len(vocabulary),
        is_test=is_test if is_test.any() else None,
        owner=owner if owned else None,
        task="language",
        vocabulary=vocabulary,
    )
