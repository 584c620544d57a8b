"""Instructions and their answers, for fine-tuning language models: only answers are predicted."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any, Literal

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.source import DataSource
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
from flfast.zoo.datamodules.sources.conversation_files import Conversation, read_conversations

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Instructions(DataSource):
    """Instructions as tokens int64 [N, max_tokens], one a row; shorter ones end with padding.

    The target of a position is the next token if it belongs to an answer, else `IGNORED`. Of a
    longer conversation, the last `max_tokens` + 1 tokens are kept. Each text before an answer, and
    each answer, is tokenised by itself, as when the model is asked. The seed determines the test
    set, a share of each client's conversations.
    """

    root: str
    client_column: str | None
    tokenizer: str
    chat_template: Literal["auto", "plain"]
    vocabulary_size: VocabularySize
    max_tokens: Count
    test_fraction: BelowOne
    seed: int

    def load(self) -> Examples:
        """All conversations.

        Raises:
            ValueError: with file and line, if conversations have another form; or if the tokenizer
                or its chat template cannot be read.
        """
        conversations = read_conversations(self.root, self.client_column)
        clients, groups = dict[str, Any](), np.zeros(len(conversations), dtype=np.int64)
        if conversations[0].client is not None:
            names = [conversation.client for conversation in conversations]
            known = number_clients(names, None, where=f"data.root={self.root}: clients")
            clients, groups = known._asdict(), known.owner
        is_test = held_out_test(groups, test_fraction=self.test_fraction, seed=self.seed)
        trained = self.tokenizer in {"characters", "words", "bpe"}
        is_plain = trained or self.chat_template == "plain"
        template = plain if is_plain else template_of(self.tokenizer)
        parts = [template_parts(conversation, template) for conversation in conversations]
        encode, vocabulary = self._encoder(parts, is_test)
        inputs, targets = self._rows(conversations, map(encode, parts))
        return Examples(
            inputs=torch.from_numpy(inputs),
            targets=torch.from_numpy(targets),
            num_classes=len(vocabulary),
            is_test=is_test,
            task="language",
            vocabulary=vocabulary,
            **clients,
        )

    def _encoder(
        self, parts: list[list[str]], is_test: np.ndarray
    ) -> tuple[Callable[[Sequence[str]], list[np.ndarray]], tuple[str, ...]]:
        """An encoder of texts as tokens, and the text of every token."""
        if self.tokenizer == "characters":
            characters = sorted({c for texts in parts for text in texts for c in text})
            return _by_character(characters), ("", *characters)
        training = [text for texts in compress(parts, ~is_test) for text in texts]
        made = make_tokenizer(self.tokenizer, texts=training, vocabulary_size=self.vocabulary_size)
        return partial(encode_texts, made, special=False), token_texts(made)

    def _rows(
        self, conversations: list[Conversation], encoded: Iterable[list[np.ndarray]]
    ) -> np.ndarray:
        """Inputs and targets, int64 [2, N, max_tokens], of texts and answers that are tokens."""
        num, length = len(conversations), self.max_tokens
        what = f"data.max_tokens={length} for {num:,} conversations"
        require_memory(16 * num * length, what)
        rows = np.empty((2, num, length), dtype=np.int64)
        rows[0], rows[1] = PADDING, IGNORED
        num_cut = 0
        for row, parts in enumerate(encoded):
            answer = np.repeat(np.arange(len(parts)) % 2 == 1, [*map(len, parts)])
            num_cut += len(answer) > length + 1
            answer, tokens = answer[-length - 1 :], np.concatenate(parts)[-length - 1 :]
            if not answer[1:].any():
                raise ValueError(
                    f"{conversations[row].where}: data.tokenizer={self.tokenizer} leaves no token "
                    "of its answers"
                )
            rows[0, row, : len(tokens) - 1] = tokens[:-1]
            rows[1, row, : len(tokens) - 1] = np.where(answer, tokens, IGNORED)[1:]
        if num_cut:
            log.warning(
                "data.max_tokens=%d: %d of %d conversations are longer; their beginnings are cut "
                "off",
                *(length, num_cut, num),
            )
        return rows


def _by_character(characters: Sequence[str]) -> Callable[[Sequence[str]], list[np.ndarray]]:
    """An encoder of texts as numbers of their characters, from 1."""
    numbers = {character: number for number, character in enumerate(characters, 1)}
    return lambda texts: [np.array([numbers[c] for c in text], dtype=np.int64) for text in texts]
