"""Checks overrides for mistakes that Hydra answers with a traceback or an unclear message.

Also what torchrun or srun says in the environment. Torch-free.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError
from omegaconf.grammar_parser import parse

from flfast.config import hydra_on_3_14
from flfast.config.composition import CONF, options_of
from flfast.config.errors import ConfigError, refused
from flfast.config.implied import user_folders
from flfast.config.known_words import ours
from flfast.state.config_keys import flat
from flfast.state.environment import LEAST, integer
from flfast.state.messages import first_line

_MORE_CONFIG = ("--config-dir", "-cd", "hydra.searchpath")
"""Arguments that add folders with config groups."""

hydra_on_3_14.install()
_FLAGS = {*get_args_parser()._option_string_actions}  # noqa: SLF001 - argparse has no other list
"""Hydra's flags."""

_DASHES = "-\N{EN DASH}\N{EM DASH}"
"""In front of flags; editors and web pages make longer ones of two."""

_SETTING = re.compile(r"(?<![\w.@/+~\"'-])[\w.@/+~-]+=[^\s,{}\[\]\"']+")
"""A setting without quotes, such as one of `overrides: [batch_size=5]`."""


def check_overrides(arguments: Sequence[str]) -> None:
    """Check each override of the command line on its own; Hydra checks its flags.

    Raises:
        ConfigError: one line per problem, with the override and what is allowed.
    """
    overrides = [word for word in arguments if "=" in word and not word.startswith("-")]
    more_config = any(word.startswith(_MORE_CONFIG) for word in arguments)
    folders = [folder for folder in user_folders(arguments) if folder.resolve() != Path(CONF)]
    problems = [problem for word in arguments if (problem := _unknown_flag(word))]
    problems += [
        problem
        for override in overrides
        for problem in (
            *_problems(override, more_config=more_config),
            *_hidden(override, folders),
        )
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def at_home(word: str) -> str:
    """An override with a user's folder for a `~` before its value, which Hydra cannot read."""
    key, _, path = word.partition("=")
    place = os.path.expanduser(path)  # noqa: PTH111 - `~nobody` stays for Hydra's message
    return word if place == path or re.search("[,'\\\\]", place) else f"{key}='{place}'"


def without_dashes(arguments: Sequence[str]) -> list[str]:
    """The arguments with `--key=value` as `key=value`, as agents of searches write it.

    Flags of Hydra stay as they are.

    >>> without_dashes(["--optimizer.lr=0.1", "--config-dir=mine", "-m", "~seed"])
    ['optimizer.lr=0.1', '--config-dir=mine', '-m', '~seed']
    """
    return [
        word.lstrip(_DASHES) if "=" in word and not _is_flag(word) else word for word in arguments
    ]


def _is_flag(word: str) -> bool:
    """Whether a word is one of Hydra's flags, which may be shortened as `--multi`."""
    name = word.partition("=")[0]
    return name in _FLAGS or (name[:2] == "--" and any(one.startswith(name) for one in _FLAGS))


def _unknown_flag(word: str) -> str | None:
    """The problem of a word such as `--rounds` or `-gr`; None for other words."""
    name = word.lstrip(_DASHES).replace("-", "_")
    if word[:1] not in {*_DASHES} or "=" in word or _is_flag(word) or not name.isidentifier():
        return None
    conf = Path(CONF)
    known = {*OmegaConf.load(conf / "config.yaml"), *(path.name for path in conf.iterdir())}
    key = ours(word) or (name if name in known else None)
    if key is None and word[:2] in _FLAGS:  # `-cjob`, a flag and its value
        return None
    return f"{word}: is no flag; write settings as key=value, here {key or name}=VALUE"


def _problems(text: str, *, more_config: bool) -> Iterator[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([text])
    except HydraException:
        yield from _how_to_quote(text)  # otherwise Hydra's own message is clear
        return
    if override.key_or_group == "hydra.output_subdir":
        yield f"{text}: flfast itself writes .hydra/; allowed: hydra.run.dir or hydra.sweep.dir"
    group, options = override.key_or_group, options_of(override.key_or_group)
    if _is_empty(override, None if more_config else [*options]):
        yield f"{text}: the sweep has no value, so nothing would run"
    for value in _values(override):
        content = value.text if isinstance(value, QuotedString) else value
        if options and "." not in group:
            yield from _problems_of_choice(text, group, content, options)
        elif isinstance(content, str) and (error := _interpolation_error(content)):
            yield f"{text}: {error}"


def _hidden(text: str, folders: Sequence[Path]) -> Iterator[str]:
    """That an option of a user's folder has the name of one of flfast's, which would act."""
    group, _, name = text.partition("=")
    for path in (folder / group / f"{name}.yaml" for folder in folders):
        if path.is_file() and name in options_of(group):
            yield (
                f"{text}: an option of flfast and {path} have this name; rename your file, as "
                f"{path.with_stem(f'my_{path.stem}')}"
            )


def _how_to_quote(text: str) -> Iterator[str]:
    """What an override lacks that Hydra's grammar cannot read, if quotes are a remedy."""
    if not text.isascii():
        key = text.partition("=")[0]
        yield f"{text}: Hydra reads such characters in quotes only; write {key}='\"...\"'"
    elif (quoted := _with_quotes(text)) is not None:
        yield f"{text}: settings inside of brackets need quotes; write {quoted}"


def _problems_of_choice(
    text: str, group: str, content: Any, options: Mapping[str, Path]
) -> Iterator[str]:
    """What is wrong with the choice of one or several options of a group."""
    names = content if isinstance(content, list) else [content]
    texts = [name for name in names if isinstance(name, str)]
    if shared := _key_of_several([options[name] for name in texts if name in options]):
        yield (
            f"{text}: each of these options sets {shared}, so only the last would act; "
            f"one run for each: -m {group}={','.join(map(str, names))}"
        )
    if texts != names or any("${" in name for name in texts):
        yield f"{text}: {group} is a config group; allowed: {', '.join(options)}"


def _key_of_several(paths: Sequence[Path]) -> str | None:
    """A key that several options of a group set themselves, so that they cannot be combined."""
    known: Any = (OmegaConf.to_container(OmegaConf.load(path)) for path in paths)
    times = Counter(key for values in known for key, _ in flat(values) if key != "defaults")
    return next((key for key, number in times.items() if number > 1), None)


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

    `options` are those of its group; None if other folders may hold more.
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


def check_environment() -> None:
    """Refuse an environment from which the world of ranks cannot be read.

    Raises:
        ConfigError: naming a variable, its value and what is allowed.
    """
    with refused():
        values = {name: integer(name, 1) for name in LEAST if name in os.environ}
    if not {"RANK", "WORLD_SIZE"} <= values.keys():
        return
    for name, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if {name, size} <= values.keys() and values[name] >= values[size]:
            raise ConfigError(
                f"environment variable {name}={values[name]} with {size}={values[size]}: must be "
                f"less than {size}"
            )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"environment variable {missing[0]} is missing, and RANK={values['RANK']} "
            f"WORLD_SIZE={values['WORLD_SIZE']} say that a launcher started this process; set it, "
            f"as torchrun does, or unset RANK"
        )
