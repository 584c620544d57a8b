"""Messages about errors of the config: without a traceback, with what is allowed. Torch-free.

`run_command` is the frame of commands that show them, but for the training itself.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flfast.config.composition import CONF, compose, options_of, without_hydra
from flfast.config.errors import ConfigError, FolderBusyError
from flfast.config.known_words import here_it_is
from flfast.output.results.outcome import EXIT_BUSY
from flfast.state.messages import did_you_mean, printable
from flfast.state.output_streams import surviving_output

_ABSENT = object()
_NAMED = 5
"""Most options that an error names as those that have a key."""
_UNKNOWN = re.compile(r"Could not (?:override|delete.*?|append.*?) '([^']+)'")


KEYS = "All keys: python -m flfast.train --cfg job."


def explain(error: Exception, *, hint: str = KEYS) -> int:
    """Print the error's message to stderr, without a traceback; returns the exit code.

    It is 73 for a busy folder, else 2. `hint` says where the user finds more.
    """
    text = printable(message(error, sys.argv[1:]))
    lines = "\n".join(f"  {line}" for line in text.splitlines())
    sys.stderr.write(f"flfast stops here:\n{lines}\n")
    sys.stderr.write(f"{hint} Full traceback: HYDRA_FULL_ERROR=1.\n")
    return EXIT_BUSY if isinstance(error, FolderBusyError) else 2


def message(error: Exception, arguments: Sequence[str]) -> str:
    """The user's message for an error of flfast, Hydra or OmegaConf, which may have several lines.

    The arguments are those of the command line, or overrides.
    """
    text = str(error)
    unknown = _UNKNOWN.match(text)
    taken = re.search(r"An item is already at '[^']+'\.", f"{text} {error.__cause__}")
    if taken:
        text = f"{taken[0]} Leave the + out, or write ++."
    elif unknown:
        text = f"unknown key {unknown[1]}{_did_you_mean(unknown[1], arguments)}"
    elif isinstance(error, MissingConfigException) and "/" in (
        path := error.missing_cfg_file or ""
    ):
        group, _, name = path.rpartition("/")  # such as `model/mpl`
        known = error.options or [*options_of(group)]
        hint = _elsewhere(name) or did_you_mean(name.lower(), known)
        text = f"{group}={name}: there is no such option{hint}"
    elif isinstance(error, OverrideParseException):
        text = f"{error.override}: {text.splitlines()[0]}"
        if "=" not in error.override:
            example = _elsewhere(error.override) or "; allowed: key=value, such as rounds=5"
            text = f"{error.override}: is no setting{example}"
    elif error.__cause__ is not None and str(error.__cause__) not in text:
        text = f"{text}\n{error.__cause__}"
    elif not isinstance(error, (ConfigError, HydraException, OmegaConfBaseException, OSError)):
        typed = " ".join(arguments)
        text = f"Hydra cannot compose {typed}: {text or type(error).__name__}"
    return text.strip()


def _elsewhere(name: str) -> str:
    """The end of a message about a name that is an option of some groups; empty for others."""
    words = [
        f"{path.parent.name}={path.stem}" for path in Path(CONF).glob(f"*/{name.lower()}.yaml")
    ]
    return f"; did you mean {' or '.join(sorted(words))}?" if words else ""


def _did_you_mean(key: str, arguments: Sequence[str]) -> str:
    if options := options_of(key):
        return f" as a value: it is a config group; allowed: {', '.join(options)}"
    known = _known_keys(arguments)
    known = [name for name in known if not name.rpartition(".")[2].startswith("_")]
    group, last = key.partition(".")[0], key.rpartition(".")[2]
    nested = [name for name in known if name.startswith(f"{group}.") and name.endswith(f".{last}")]
    if nested:
        return f"; did you mean {nested[0]}?"
    if found := _in_another_option(key, known):
        return found
    if f"{group}=custom" in arguments:
        return f"; to pass it to {group}._target_ write +{key}"
    elsewhere = [name for name in known if name.endswith(f".{key}")]
    # A key such as `callbacks.events_figure.max_steps` is rarely what is meant.
    elsewhere = [name for name in elsewhere if name.count(".") == 1] or elsewhere
    if elsewhere and (elsewhere[0].count(".") == 1 or not here_it_is(key)):
        return f"; did you mean {' or '.join(elsewhere)}?"
    return here_it_is(key) or _nearest(key, known)


def _in_another_option(key: str, known: Sequence[str]) -> str:
    group, _, rest = key.partition(".")
    options = {name: OmegaConf.load(path) for name, path in options_of(group).items()}
    owners = [f"{group}={name}" for name, node in options.items() if _has(node, rest)]
    if owners:
        rest = f" and {len(owners) - _NAMED} others" if len(owners) > _NAMED else ""
        here = [name.partition(".")[2] for name in known if name.startswith(f"{group}.")]
        keys = f"; the chosen one has {', '.join(here)}" if here else ""
        return f"; it belongs to {', '.join(owners[:_NAMED])}{rest}{keys}"
    last = key.rpartition(".")[2]
    for option, node in options.items():
        inner = _keys(OmegaConf.to_container(node), f"{group}.")
        nested = [name for name in inner if name.endswith(f".{last}")]
        if nested:
            return f"; did you mean {group}={option} {nested[0]}?"
    return ""


def _nearest(key: str, known: Sequence[str]) -> str:
    """The nearest key below the same one, or all of them, if there are any."""
    parent, _, last = key.rpartition(".")
    if parent and parent not in known:
        close = did_you_mean(key, known)
        return close if "did you mean" in close else ""
    # Without the part that is right, or `trainer.devices` would be near to `trainer.strategy`.
    inside = [name.rpartition(".") for name in known if name.rpartition(".")[0] == parent]
    if not inside:
        return f": {parent} is one value, without keys below it"
    return did_you_mean(last, [name for *_, name in inside], prefix=f"{parent}." * bool(parent))


def _has(node: Any, key: str) -> bool:
    """Whether an option of a config group sets a key."""
    return bool(key) and OmegaConf.select(node, key, default=_ABSENT) is not _ABSENT


def _known_keys(arguments: Sequence[str]) -> list[str]:
    """Keys of the config that the command line's groups compose."""
    pairs = [arg for arg in arguments if "=" in arg and "," not in arg]
    chosen = [pair for pair in pairs if options_of(pair.partition("=")[0])]
    folders = [value for flag, value in pairwise(arguments) if flag in {"--config-dir", "-cd"}]
    search = [f"hydra.searchpath=[{','.join(f'file://{Path(f).absolute()}' for f in folders)}]"]
    try:
        composed = compose([*chosen, *search])
    except HydraException:
        composed = compose([])
    config = without_hydra(composed)
    # Interpolations such as ${hydra:...} resolve in a job only. Names do not need the values.
    return list(_keys(OmegaConf.to_container(config, resolve=False), ""))


def _keys(node: Any, prefix: str) -> Iterator[str]:
    for name, child in node.items():
        yield f"{prefix}{name}"
        if isinstance(child, dict):
            yield from _keys(child, f"{prefix}{name}.")


@surviving_output()
def run_command(name: str, usage: str, work: Callable[[list[str]], object]) -> None:
    """Run a command with the words of the command line; errors exit as `explain` says.

    `name` is that of the module. `usage` is printed for `--help`, or without words.
    """
    words = sys.argv[1:]
    if not words or {"--help", "-h"} & set(words):
        sys.stdout.write(usage)
        return
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        work(words)
    except (ConfigError, HydraException, OmegaConfBaseException, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        hint = f"All options: python -m {name} --help."
        sys.exit(explain(error, hint=hint))
