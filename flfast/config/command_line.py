"""Checks overrides for mistakes that Hydra answers with a traceback or an unclear message."""

import re
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
from flfast.messages import first_line

_MORE_CONFIG = ("--config-dir", "-cd", "hydra.searchpath")
"""Arguments that add folders with config groups."""

_SETTING = re.compile(r"(?<![\w.@/+~\"'-])[\w.@/+~-]+=[^\s,{}\[\]\"']+")
"""A setting without quotes, such as one of `overrides: [batch_size=5]`."""


def check_overrides(arguments: Sequence[str], *, conf: str) -> None:
    """Check each override of the command line on its own.

    Args:
        arguments: all arguments of the command; Hydra checks its flags.
        conf: folder of the config.

    Raises:
        ConfigError: one line per problem, with the override and what is allowed.
    """
    overrides = [word for word in arguments if "=" in word and not word.startswith("-")]
    more_config = any(word.startswith(_MORE_CONFIG) for word in arguments)
    problems = [
        problem
        for override in overrides
        for problem in _problems(override, Path(conf), more_config=more_config)
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _problems(text: str, conf: Path, *, more_config: bool) -> Iterator[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([text])
    except HydraException:
        if not text.isascii():
            key = text.partition("=")[0]
            yield f"{text}: Hydra reads such characters in quotes only; write {key}='\"...\"'"
        elif (quoted := _with_quotes(text)) is not None:
            yield f"{text}: settings inside of brackets need quotes; write {quoted}"
        return  # otherwise Hydra's own message is clear
    folder = conf / override.key_or_group
    is_group = "." not in override.key_or_group and folder.is_dir()
    options = sorted(path.stem for path in folder.glob("*.yaml"))
    if _is_empty(override, None if more_config else options):
        yield f"{text}: the sweep has no value, so nothing would run"
    for value in _values(override):
        content = value.text if isinstance(value, QuotedString) else value
        names = content if isinstance(content, list) else [content]
        if is_group and not all(isinstance(name, str) and "${" not in name for name in names):
            allowed = ", ".join(options)
            yield f"{text}: {override.key_or_group} is a config group; allowed: {allowed}"
        elif isinstance(content, str) and (error := _interpolation_error(content)):
            yield f"{text}: {error}"


def _with_quotes(text: str) -> str | None:
    """The override with quotes around settings in lists and dicts; None if that is no remedy."""
    key, _, value = text.partition("=")
    changed = _SETTING.sub(r'"\g<0>"', value)
    try:
        OverridesParser.create().parse_overrides([f"{key}={changed}"])
    except HydraException:
        return None
    return f"{key}='{changed}'"


def _is_empty(override: Override, options: list[str] | None) -> bool:
    """Whether an override sweeps over no value: Hydra would silently run no job.

    Args:
        override: one override of the command line.
        options: the options of its group; None if other folders may hold more.
    """
    value = override._value  # noqa: SLF001 - as in `_values`
    if isinstance(value, Glob):
        return options is not None and not value.filter(options)
    return isinstance(value, RangeSweep) and (
        not value.step or next(iter(value.range()), None) is None
    )


def _values(override: Override) -> list[Any]:
    value = override._value  # noqa: SLF001 - value() does not return a sweep as it was typed
    if isinstance(value, Glob):  # matches existing names only
        return []
    return value.list if isinstance(value, ChoiceSweep) else [value]


def _interpolation_error(text: str) -> str | None:
    if "${" not in text:
        return None
    try:
        parse(text)
    except GrammarParseError as error:
        return f"not a valid interpolation: {first_line(error)}"
    return None
