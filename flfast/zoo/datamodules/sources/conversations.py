"""Instructions and their answers, for fine-tuning language models: only answers are predicted."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.text_tokens import (
    PADDING,
    encode_texts,
    make_tokenizer,
    token_texts,
)
from flfast.datamodules.value_names import number_clients
from flfast.state.options import BelowOne, Count, VocabularySize
from flfast.tasks.task_type import IGNORED
from flfast.zoo.datamodules.sources.chat_template import plain, template_of, template_parts
from flfast.zoo.datamodules.sources.conversation_files import read_conversations

log = logging.getLogger(__name__)


def instructions(  # noqa: PLR0913 - one parameter an option
    *,
    root: str,
    client_column: str | None,
    tokenizer: str,
    chat_template: Literal["auto", "plain"],
    vocabulary_size: VocabularySize,
    max_tokens: Count,
    test_fraction: BelowOne,
    seed: int,
) -> Examples:
    """Conversations as tokens int64 [N, max_tokens], one a row; shorter ones end with padding.

    The target of a position is the next token if it belongs to an answer, else `IGNORED`. Of a
    longer conversation, the last `max_tokens` + 1 tokens are kept. Each text before an answer, and
    each answer, is tokenised by itself, as when the model is asked. The seed determines the test
    set, a share of each client's conversations.

    Raises:
        ValueError: with file and line, if conversations have another form; or if the tokenizer or
            its chat template cannot be read.
    """
    found = read_conversations(root, client_column)
    known = None
    if found[0].client is not None:
        names = [one.client for one in found]
        known = number_clients(names, None, where=f"data.root={root}: clients")
    groups = np.zeros(len(found), dtype=np.int64) if known is None else known.owner
    is_test = held_out_test(groups, test_fraction=test_fraction, seed=seed)
    trained = tokenizer in {"characters", "words", "bpe"}
    template = plain if trained or chat_template == "plain" else template_of(tokenizer)
    parts = [template_parts(one, template) for one in found]
    training = [text for own, test in zip(parts, is_test, strict=True) if not test for text in own]
    if tokenizer == "characters":
        characters = sorted({c for own in parts for text in own for c in text})
        vocabulary, encode = ("", *characters), _by_character(characters)
    else:
        made = make_tokenizer(tokenizer, texts=training, vocabulary_size=vocabulary_size)
        vocabulary, encode = token_texts(made), partial(encode_texts, made, special=False)
    what = f"data.max_tokens={max_tokens} for {len(parts):,} conversations"
    require_memory(16 * len(parts) * max_tokens, what)
    inputs = np.full((len(parts), max_tokens), PADDING, dtype=np.int64)
    targets = np.full((len(parts), max_tokens), IGNORED, dtype=np.int64)
    num_cut = 0
    for row, own in enumerate(parts):
        encoded = encode(own)
        answer = np.repeat(np.arange(len(own)) % 2 == 1, [len(text) for text in encoded])
        num_cut += len(answer) > max_tokens + 1
        answer, tokens = answer[-max_tokens - 1 :], np.concatenate(encoded)[-max_tokens - 1 :]
        if not answer[1:].any():
            raise ValueError(
                f"{found[row].where}: data.tokenizer={tokenizer} leaves no token of its answers"
            )
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        targets[row, : len(tokens) - 1] = np.where(answer, tokens, IGNORED)[1:]
    if num_cut:
        log.warning(
            "data.max_tokens=%d: %d of %d conversations are longer; their beginnings are cut off",
            *(max_tokens, num_cut, len(parts)),
        )
    return Examples(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        num_classes=len(vocabulary),
        is_test=is_test,
        owner=None if known is None else known.owner,
        task="language",
        vocabulary=vocabulary,
        client_names=() if known is None else known.names,
    )


def _by_character(characters: Sequence[str]) -> Callable[[Sequence[str]], list[np.ndarray]]:
    """An encoder of texts as numbers of their characters, from 1."""
    numbers = {character: number for number, character in enumerate(characters, 1)}
    return lambda texts: [np.array([numbers[c] for c in text], dtype=np.int64) for text in texts]
