"""Words of the command line that Hydra would answer with a traceback, or without naming them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    Override,
    QuotedString,
    RangeSweep,
)
from hydra.errors import HydraException
from omegaconf.errors import GrammarParseError
from omegaconf.grammar_parser import parse

from flfast.config.errors import ConfigError

_ELSEWHERE = ("--config-dir", "-cd", "hydra.searchpath")
"""Words that name other folders with options."""


def check_words(words: Sequence[str], *, conf: str) -> None:
    """Check what can be told of each word alone.

    Args:
        words: of the command line; flags are left to Hydra.
        conf: folder of the config.

    Raises:
        ConfigError: one line per problem: the word, and what is allowed.
    """
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    elsewhere = any(word.startswith(_ELSEWHERE) for word in words)
    problems = [
        problem
        for word in overrides
        for problem in _problems(word, Path(conf), elsewhere=elsewhere)
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _problems(word: str, conf: Path, *, elsewhere: bool) -> Iterator[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException:
        return  # Hydra says it well
    folder = conf / override.key_or_group
    is_group = "." not in override.key_or_group and folder.is_dir()
    options = sorted(path.stem for path in folder.glob("*.yaml"))
    if _is_empty(override, None if elsewhere else options):
        yield f"{word}: no value, so that nothing would run"
    for value in _values(override):
        text = value.text if isinstance(value, QuotedString) else value
        names = text if isinstance(text, list) else [text]
        if is_group and not all(isinstance(name, str) and "${" not in name for name in names):
            allowed = ", ".join(options)
            yield f"{word}: {override.key_or_group} is a config group; allowed: {allowed}"
        elif isinstance(text, str) and (error := _unreadable(text)):
            yield f"{word}: {error}"


def _is_empty(override: Override, options: list[str] | None) -> bool:
    """Whether a sweep goes over nothing, of which Hydra makes no job and no error.

    Args:
        override: one word of the command line.
        options: of its group; None if there may be others.
    """
    value = override._value  # noqa: SLF001 - as in `_values`
    if isinstance(value, Glob):
        return options is not None and not value.filter(options)
    return isinstance(value, RangeSweep) and (
        not value.step or next(iter(value.range()), None) is None
    )


def _values(override: Override) -> list[Any]:
    value = override._value  # noqa: SLF001 - value() of a sweep is not what was typed
    if isinstance(value, Glob):  # of the names that there are
        return []
    return value.list if isinstance(value, ChoiceSweep) else [value]


def _unreadable(text: str) -> str | None:
    if "${" not in text:
        return None
    try:
        parse(text)
    except GrammarParseError as error:
        return f"no interpolation: {str(error).splitlines()[0]}"
    return None
