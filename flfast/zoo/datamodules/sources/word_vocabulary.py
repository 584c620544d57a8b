"""A vocabulary of words: the most frequent words, or the words in a file."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flfast.state.regular_file import read_text, reading

PADDING, UNKNOWN = 0, 1

_WORDS = re.compile(r"[\w']+|[.,!?;]")


def words_of(text: str) -> list[str]:
    """Words and punctuation marks of a text, each a token of its own.

    >>> words_of("Ay me! She speaks.")
    ['Ay', 'me', '!', 'She', 'speaks', '.']
    """
    return _WORDS.findall(text)


class WordVocabulary:
    """Numbers of words, which begin at 2. 0 is padding, 1 any unknown word."""

    def __init__(self, words: Iterable[str]) -> None:
        self._numbers: dict[str, int] = {}
        for word in words:
            self._numbers.setdefault(word, len(self._numbers) + 2)

    def __len__(self) -> int:
        return len(self._numbers) + 2

    def encode(self, words: Iterable[str]) -> list[int]:
        """Numbers of words."""
        return [self._numbers.get(word, UNKNOWN) for word in words]

    def texts(self) -> tuple[str, ...]:
        """Text of every number, with a space before every word."""
        return ("", " <unk>", *(f" {word}" for word in self._numbers))


def make_vocabulary(path: str | None, *, words: Iterable[str], size: int) -> WordVocabulary:
    """The vocabulary in a file, or the most frequent words of training texts.

    The file is a JSON list of words, or a JSON object with such a list as `vocab`, which is how
    LEAF writes the words of embeddings. Without a path, the vocabulary has at most `size` numbers,
    padding and unknown included; words of equal frequency are sorted.

    Raises:
        ValueError: if the file has no such list.
    """
    if path is not None:
        return WordVocabulary(_read(path))
    counts = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return WordVocabulary(word for word, _ in counts[: max(size - 2, 0)])


def _read(path: str) -> list[str]:
    with reading(f"data.vocabulary={path} is not readable JSON", RecursionError):
        content: Any = json.loads(read_text(Path(path).expanduser()))
    words = content.get("vocab") if isinstance(content, dict) else content
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(
            f"data.vocabulary={path}: expected a JSON list of words, or an object with such a "
            "list as vocab"
        )
    return words
