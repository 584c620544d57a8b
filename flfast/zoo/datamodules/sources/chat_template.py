"""Instructions as text, and which parts of it are answers."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flfast.state.extras import import_extra
from flfast.state.regular_file import read_text, reading
from flfast.zoo.datamodules.sources.conversation_files import Conversation

END = "␃"
"""Ends every message of the plain template."""


Template = Callable[..., str]
"""(messages, add_generation_prompt) -> one text; with the latter, up to where an answer begins."""


def plain(messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> str:
    r"""The template for tokenizers without one: role in brackets, line break, content, mark.

    >>> plain([{"role": "user", "content": "2 + 2?"}], add_generation_prompt=True)
    '<user>\n2 + 2?␃<assistant>\n'
    """
    text = "".join(f"<{m['role']}>\n{m['content']}{END}" for m in messages)
    return f"{text}<assistant>\n" if add_generation_prompt else text


def template_of(tokenizer: str) -> Template:
    """The template beside a `tokenizer.json` of Hugging Face, or `plain` if there is none.

    transformers renders it in a sandbox; no code of the folder is run.

    Raises:
        ValueError: if it cannot be read, or transformers is missing.
    """
    folder = Path(tokenizer).expanduser().parent
    config = folder / "tokenizer_config.json"
    problem = f"data.tokenizer={tokenizer}: the chat template in its folder cannot be read"
    with reading(problem, TypeError):
        named = config.is_file() and "chat_template" in json.loads(read_text(config))
        if not named and not (folder / "chat_template.jinja").is_file():
            return plain
        library = import_extra("transformers", extra="transformers")
        loaded: Any = library.PreTrainedTokenizerFast.from_pretrained(
            str(folder), local_files_only=True
        )
    return partial(loaded.apply_chat_template, tokenize=False)


def template_parts(conversation: Conversation, template: Template) -> list[str]:
    """A conversation up to its last answer: texts before answers, and answers, in turns.

    An answer includes the mark by which the template ends it.

    Raises:
        ValueError: with file and line, if the template refuses the messages, or an answer changes
            the text before it.
    """
    parts: list[str] = []
    for number, message in enumerate(conversation.messages):
        if number and message["role"] == "assistant":
            try:
                before = template(conversation.messages[:number], add_generation_prompt=True)
                behind = template(conversation.messages[: number + 1], add_generation_prompt=False)
            except Exception as error:  # noqa: BLE001 - a template raises what it likes
                raise ValueError(
                    f"{conversation.where}: the tokenizer's chat template refuses it: {error}; "
                    "allowed: other messages, or data.chat_template=plain"
                ) from None
            done = "".join(parts)
            if not before.startswith(done) or not behind.startswith(before):
                raise ValueError(
                    f"{conversation.where}: the tokenizer's chat template changes the text before "
                    "an answer, so its tokens cannot be told; allowed: data.chat_template=plain"
                )
            parts += [before[len(done) :], behind[len(before) :]]
    return parts
