"""Texts as tokens, with the library `tokenizers`: from a file, or trained on the texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.sources.extras import import_extra
from flfast.state.regular_file import read_text

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


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Tokens of every text, int64 [length] each."""
    return [np.array(e.ids, dtype=np.int64) for e in tokenizer.encode_batch(list(texts))]


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
