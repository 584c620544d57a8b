"""Words of other frameworks and of scripts, and the settings that they mean here. Torch-free.

`known_words.txt` beside this file is the only table of that kind.
"""

from functools import cache
from pathlib import Path


@cache
def known_words() -> dict[str, str]:
    """Our settings by others' words."""
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.rpartition(": ")[::2] for line in lines if line and line[0] != "#")
    return {word: ours for ours, words in pairs for word in words.split()}


def ours(key: str) -> str | None:
    """The settings that a key of another framework means here; None for an unknown one.

    Signs of the command line in front do not count, nor does the prefix `trainer.`.

    >>> ours("--num-server-rounds"), ours("trainer.gpus"), ours("rounds")
    ('rounds', 'trainer.accelerator=gpu trainer.devices', None)
    """
    word, known = key.lstrip("+~-").replace("-", "_"), known_words()
    return known.get(word) or known.get(word.removeprefix("trainer."))


def here_it_is(key: str) -> str:
    """The end of a message about an unknown key that is known elsewhere; empty for others."""
    found = ours(key)
    return f"; here it is {found}" if found else ""
