"""Reads YAML files of anybody's run: of bounded size, and only what a run writes. Torch-free."""

from pathlib import Path
from typing import Any, TypeVar

import yaml

from flfast.state.messages import first_line, printable
from flfast.state.regular_file import read_file

# C's parser reads a config in 2 ms; OmegaConf.load takes 50 ms.
PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MOST_BYTES = 2**20
_DEEPEST = 40

T = TypeVar("T", dict[str, Any], list[str])


def read_yaml(path: Path, kind: type[T], loader: Any = PARSER) -> T:
    """The content of a YAML file, of one kind; texts in it have no control characters.

    Nothing in it is deep, and no node is twice. The loader is a safe one of the library `yaml`.

    Raises:
        OSError: if it cannot be read, or is no file.
        ValueError: with the path, if it is no such YAML.
    """
    content = read_file(path)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path}: has {len(content)} bytes; allowed: {MOST_BYTES}")
    try:
        text = content.decode("utf-8")
        _check(text)
        if text and not text.endswith("\n"):
            raise ValueError("its last line is incomplete")
        found = _printable(yaml.load(text, loader))  # of the safe loaders
        words = found if kind is list and isinstance(found, list) else []
        if not isinstance(found, kind) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"it has no {'list of texts' if kind is list else 'keys'}")
        return found
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or first_line(error)
        raise ValueError(f"{path} is no YAML of a run: {printable(problem)}") from None


def _check(text: str) -> None:
    """Look at the events only: the parser in C crashes on deep nodes when it composes them."""
    depth = 0
    for event in yaml.parse(text, PARSER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _DEEPEST:
            raise ValueError(f"allowed: plain values, {_DEEPEST} inside each other, and no *NAME")


def _printable(node: Any) -> Any:
    if isinstance(node, dict):
        return {_printable(key): _printable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_printable(value) for value in node]
    text = str(node)  # Python refuses integers of thousands of digits here
    return printable(text) if isinstance(node, str) else node
