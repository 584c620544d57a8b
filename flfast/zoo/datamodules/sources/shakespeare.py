"""Plays as plain text: every speaker is a client, and the next character or word is predicted.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.source import DataSource
from flfast.datamodules.sources.text_tokens import Text, language_examples
from flfast.state.options import BelowOne, Count, VocabularySize
from flfast.state.regular_file import read_text, reading
from flfast.zoo.datamodules.sources.word_vocabulary import make_vocabulary, words_of

_FILE = "tinyshakespeare.txt"
_CHOICES = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}


@dataclass(frozen=True, kw_only=True)
class Shakespeare(DataSource):
    """Tokens int64 [N, sequence_length] by speaker, in the order of the file.

    A speech is a line `SPEAKER:` and the lines up to the next empty one. Speeches of a speaker are
    joined with line breaks; the name is no part of them. The last part of each speaker's text is
    the speaker's own test set. The vocabulary is the sorted characters of the file, or the words
    of the training sets, in lower case, most frequent ones first; see `WordVocabulary`. The latter
    depends on `min_characters` and `test_share`.

    Line breaks are no words. Speakers with fewer than 2 tokens are left out, and both halves of
    the speakers have the same vocabulary.
    """

    root: str
    tokenizer: Literal["characters", "words"]
    vocabulary_size: VocabularySize
    sequence_length: Count
    min_characters: Count
    test_share: BelowOne
    speakers: Literal["all", "even", "odd"]

    def load(self) -> Examples:
        """The texts of all chosen speakers."""
        path = _find(Path(self.root).expanduser())
        with reading(f"data.root={path} is not a readable UTF-8 text"):
            content = read_text(path)
        kept = self._tokenized(content, path)
        half = kept[_CHOICES[self.speakers]]
        if not half:
            raise ValueError(
                f"data.speakers={self.speakers} leaves none of {len(kept)}; allowed: all, even"
            )
        encode, vocabulary = self._encoder(content, kept)
        texts = []
        for owner, speech in enumerate(half):
            tokens = np.array(encode(speech), dtype=np.int64)
            train, test = split_by_time(tokens, self.test_share)
            texts += [Text(train, owner, is_test=False), Text(test, owner, is_test=True)]
        return language_examples(texts, length=self.sequence_length, vocabulary=vocabulary)

    def _tokenized(self, content: str, path: Path) -> list[np.ndarray]:
        """Characters or words of each speaker who has enough of them."""
        speeches = ["\n".join(lines) for lines in _by_speaker(content, path).values()]
        tokenize = _code_points if self.tokenizer == "characters" else _words
        long_enough = [speech for speech in speeches if len(speech) >= self.min_characters]
        kept = [tokens for tokens in map(tokenize, long_enough) if len(tokens) >= 2]
        if not kept:
            longest = max(map(len, speeches), default=0)
            raise ValueError(
                f"data.min_characters={self.min_characters} and data.tokenizer={self.tokenizer} "
                f"leave none of the {len(speeches)} speakers of {path}; allowed: a smaller "
                f"number, and texts of 2 tokens. The longest text has {longest} characters"
            )
        return kept

    def _encoder(
        self, content: str, speeches: list[np.ndarray]
    ) -> tuple[Callable[[np.ndarray], Any], tuple[str, ...]]:
        """An encoder of characters or words as tokens, and the text of every token."""
        if self.tokenizer == "characters":
            known = np.unique(_code_points(content))
            return partial(np.searchsorted, known), tuple(map(chr, known))
        parts = (split_by_time(speech, self.test_share)[0] for speech in speeches)
        training = (word for part in parts for word in part)
        vocabulary = make_vocabulary(None, words=training, size=self.vocabulary_size)
        return vocabulary.encode, vocabulary.texts()


def split_by_time(tokens: np.ndarray, test_share: float) -> tuple[np.ndarray, np.ndarray]:
    """The first part of a text [L] for training and its last part for testing.

    A part without a next token to predict is left out: a text whose last part would have fewer
    than 2 tokens is for training only, and a first part has at least 2 tokens.
    """
    cut = max(round(len(tokens) * (1 - test_share)), 2)
    if len(tokens) - cut < 2:
        cut = len(tokens)
    return tokens[:cut], tokens[cut:]


def _find(root: Path) -> Path:
    path = root / _FILE if root.is_dir() else root
    if not path.is_file():
        raise ValueError(
            f"data.root={root} must be a text file, or a folder with {_FILE}: speeches that begin "
            "with a line SPEAKER: and are separated by empty lines"
        )
    return path


def _by_speaker(content: str, path: Path) -> dict[str, list[str]]:
    """Lines by speaker, in the order of first appearance."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            lines = None
        elif lines is None:
            if not line.rstrip().endswith(":"):
                raise ValueError(
                    f"data.root={path} line {number} is {line[:40]!r}; expected SPEAKER: behind "
                    "an empty line and at the beginning"
                )
            lines = found.setdefault(line.rstrip()[:-1], [])
        else:
            lines.append(line)
    return found


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def _words(text: str) -> np.ndarray:
    return np.array(words_of(text.lower()), dtype=object)
