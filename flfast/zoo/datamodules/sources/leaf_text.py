"""LEAF's sets of texts: Shakespeare, Sent140 and Reddit, with their users as clients.

Caldas et al., LEAF: A Benchmark for Federated Settings, 2018 (arXiv:1812.01097).
"""

import string
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.state.options import Count, VocabularySize
from flfast.tasks.task_type import IGNORED, TaskName
from flfast.zoo.datamodules.sources.leaf_files import LeafUser, leaf_users, read_users
from flfast.zoo.datamodules.sources.word_vocabulary import PADDING, make_vocabulary, words_of

ALPHABET = (
    "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]"
    f"{string.ascii_lowercase}}}"
)
"""LEAF's 80 characters, in its order."""

_PADDING_WORD = "<PAD>"

Encode = Callable[[LeafUser], tuple[np.ndarray, np.ndarray]]
"""Inputs and targets of one user, int64 [n, ...]."""


def leaf_shakespeare(*, root: str) -> Examples:
    """Windows of 80 characters; only the character behind each window is predicted.

    Targets int64 [N, 80] are ignored, except at the last position.

    Raises:
        ValueError: if files are missing, have another form, or have other characters.
    """
    numbers = {character: number for number, character in enumerate(ALPHABET)}

    def encode(user: LeafUser) -> tuple[np.ndarray, np.ndarray]:
        lengths = {len(x) if isinstance(x, str) else None for x in user.x}
        if len(lengths) > 1 or None in lengths or not all(isinstance(y, str) for y in user.y):
            raise _other_form(user, "x: texts of equal length, y: characters")
        try:
            inputs = np.array([[numbers[c] for c in x] for x in user.x], dtype=np.int64)
            targets = np.full_like(inputs, IGNORED)
            targets[:, -1] = [numbers[y] for y in user.y]
        except KeyError as error:
            raise ValueError(
                f"{user.path}: user {user.name!r} has {error.args[0]!r}, which is none of LEAF's "
                f"{len(ALPHABET)} characters"
            ) from None
        return inputs, targets

    return _examples(root, encode, task="language", vocabulary=tuple(ALPHABET))


def leaf_sent140(
    *, root: str, vocabulary: str | None, vocabulary_size: VocabularySize, max_tokens: Count
) -> Examples:
    """Words of tweets int64 [N, max_tokens], classified as negative (0) or positive (1).

    Raises:
        ValueError: if files are missing or have another form.
    """
    training = (user for user in leaf_users(root) if not user.is_test)
    words = (word for user in training for tweet in _tweets(user) for word in tweet)
    known = make_vocabulary(vocabulary, words=words, size=vocabulary_size)

    def encode(user: LeafUser) -> tuple[np.ndarray, np.ndarray]:
        inputs = np.full((len(user.x), max_tokens), PADDING, dtype=np.int64)
        for row, tweet in zip(inputs, _tweets(user), strict=True):
            row[: len(tweet)] = known.encode(tweet[:max_tokens])
        try:
            return inputs, np.array([int(y) for y in user.y], dtype=np.int64)
        except (TypeError, ValueError):
            raise _other_form(user, "y: 0 or 1") from None

    return _examples(root, encode, task="classification", vocabulary=known.texts(), num_classes=2)


def leaf_reddit(*, root: str, vocabulary: str | None, vocabulary_size: VocabularySize) -> Examples:
    """Words of comments in the windows of the files, and the next word of each position.

    Padding is no target. Windows without a target are left out.

    Raises:
        ValueError: if files are missing or have another form.
    """
    training = (user for user in leaf_users(root) if not user.is_test)
    given = (word for user in training for x, _ in _windows(user) for word in x)
    words = (word for word in given if word != _PADDING_WORD)
    known = make_vocabulary(vocabulary, words=words, size=vocabulary_size)

    def numbers(words: list[str], padding: int) -> list[int]:
        pairs = zip(words, known.encode(words), strict=True)
        return [padding if word == _PADDING_WORD else number for word, number in pairs]

    def encode(user: LeafUser) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = [], []
        for x, y in _windows(user):
            if any(word != _PADDING_WORD for word in y):
                inputs.append(numbers(x, PADDING))
                targets.append(numbers(y, IGNORED))
        try:
            return np.array(inputs, dtype=np.int64), np.array(targets, dtype=np.int64)
        except ValueError:
            raise _other_form(user, "windows of equal length") from None

    return _examples(root, encode, task="language", vocabulary=known.texts())


def _tweets(user: LeafUser) -> Iterator[list[str]]:
    """Words of every tweet; an entry of x is [id, date, query, user, text, ...]."""
    for x in user.x:
        if not isinstance(x, list) or len(x) < 5 or not isinstance(x[4], str):
            raise _other_form(user, "x: [id, date, query, user, text]")
        yield words_of(x[4])


def _windows(user: LeafUser) -> Iterator[tuple[list[str], list[str]]]:
    """Words of every window and their targets; an entry of x has the windows of one comment."""
    for x, y in zip(user.x, user.y, strict=True):
        goals: Any = y.get("target_tokens") if isinstance(y, dict) else None
        if not _equally_long(x, goals) or not all(map(_equally_long, x, goals)):
            raise _other_form(
                user, "x: windows of words, y: objects with target_tokens of the same shape"
            )
        yield from zip(x, goals, strict=True)


def _equally_long(x: Any, y: Any) -> bool:
    return isinstance(x, list) and isinstance(y, list) and len(x) == len(y)


def _other_form(user: LeafUser, expected: str) -> ValueError:
    return ValueError(f"{user.path}: user {user.name!r} has another form; expected {expected}")


def _examples(
    root: str,
    encode: Encode,
    *,
    task: TaskName,
    vocabulary: tuple[str, ...],
    num_classes: int | None = None,
) -> Examples:
    width: set[int] = set()

    def read(user: LeafUser) -> tuple[np.ndarray, np.ndarray]:
        x, y = encode(user)
        if len(x) and width and x.shape[1] not in width:
            raise _other_form(user, f"windows of {min(width)} tokens, as before")
        width.update(x.shape[1:])
        return x, y

    parts, fields = read_users(root, read, lack=" has no example with something to predict")
    return Examples(
        inputs=torch.from_numpy(np.concatenate(parts)),
        num_classes=num_classes or len(vocabulary),
        task=task,
        vocabulary=vocabulary,
        **fields,
    )
