"""Texts as tokens, with the library `tokenizers`, and windows of them for the next token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.state.extras import import_extra
from flfast.state.regular_file import read_text
from flfast.tasks.task_type import IGNORED

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING_TOKENS = ("<pad>", "[PAD]", "<PAD>", "<|pad|>", "<|padding|>")
"""Names that a tokenizer's token 0 may have, which fills up short texts."""


def make_tokenizer(tokenizer: str, *, texts: Sequence[str], vocabulary_size: int) -> Tokenizer:
    """A `tokenizer.json`, or `words` or `bpe` trained on texts; token 0 is padding.

    `words` are lower case, and punctuation; `bpe` is byte pair encoding of bytes; both have at
    most `vocabulary_size` tokens. Training is a function of the texts: ties between words of equal
    counts are broken by name.

    Raises:
        ValueError: if the file cannot be read, or `bpe` has fewer tokens than bytes.
    """
    library = import_extra("tokenizers", extra="text")
    if tokenizer in {"words", "bpe"}:
        return _trained(tokenizer, texts, vocabulary_size)
    path = Path(tokenizer).expanduser()
    try:
        loaded: Tokenizer = library.Tokenizer.from_str(read_text(path))
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise ValueError(
            f"data.tokenizer={tokenizer}: not a readable tokenizer.json; allowed: words, bpe, or "
            f"the path of a file of the library tokenizers ({error})"
        ) from None
    loaded.no_padding()
    loaded.no_truncation()
    return loaded


def _trained(kind: str, texts: Sequence[str], vocabulary_size: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    trainer: Any
    options: dict[str, Any] = {
        "vocab_size": vocabulary_size,
        "special_tokens": ["<pad>", "<unk>"],
        "show_progress": False,
    }
    if kind == "words":
        made = Tokenizer(models.WordLevel(unk_token="<unk>"))
        made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(**options)
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        least = len(alphabet) + len(options["special_tokens"])
        if vocabulary_size < least:
            raise ValueError(
                f"data.vocabulary_size={vocabulary_size} with data.tokenizer=bpe: every byte is a "
                f"token; allowed: >= {least}"
            )
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    made.train_from_iterator(texts, trainer)
    return made


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: bool = True
) -> list[np.ndarray]:
    """Tokens of every text, int64 [length] each; `special` with those that the tokenizer adds."""
    encoded = tokenizer.encode_batch(list(texts), add_special_tokens=special)
    return [np.array(one.ids, dtype=np.int64) for one in encoded]


def padded_tokens(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> np.ndarray:
    """The first tokens of every text, int64 [N, max_tokens]; shorter texts end with zeros.

    Raises:
        ValueError: if token 0 of the tokenizer is not padding.
    """
    if tokenizer.id_to_token(0) not in PADDING_TOKENS:
        raise ValueError(
            f"data.tokenizer: token 0 is {tokenizer.id_to_token(0)!r}, but it must be padding, "
            f"which fills up short texts; allowed: {', '.join(PADDING_TOKENS)}"
        )
    require_memory(
        8 * len(texts) * max_tokens, f"data.max_tokens={max_tokens} for {len(texts):,} texts"
    )
    tokens = np.zeros((len(texts), max_tokens), dtype=np.int64)
    for row, text in zip(tokens, encode_texts(tokenizer, texts), strict=True):
        row[: len(text)] = text[:max_tokens]
    return tokens


def token_texts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Text of every token, in the order of their numbers; words begin with a space."""
    numbers = range(tokenizer.get_vocab_size())
    if tokenizer.decoder is None:
        return tuple(f" {tokenizer.id_to_token(number)}" for number in numbers)
    return tuple(tokenizer.decode([number], skip_special_tokens=False) for number in numbers)


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
        is_test=is_test,
        owner=owner if owned else None,
        task="language",
        vocabulary=vocabulary,
    )
