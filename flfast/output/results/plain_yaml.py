"""Reads YAML files of anybody's run: of bounded size, and only what a run writes. Torch-free."""

from pathlib import Path
from typing import Any

import yaml

from flfast.state.messages import first_line, printable
from flfast.state.regular_file import read_file

# C's parser reads a config in 2 ms; OmegaConf.load takes 50 ms.
PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MOST_BYTES = 2**20
_MOST_NODES = 100_000
_DEEPEST = 40
_MOST_BITS = 1024  # of a number; Python cannot print those with thousands of digits


class _Loader(PARSER):  # type: ignore[misc, valid-type]
    """A safe loader that refuses a key that is there twice."""

    def construct_mapping(self, node: Any, deep: Any = False) -> Any:  # noqa: FBT002 - yaml's
        """The content of a node with keys."""
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        keys = [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice[:40]} is there twice")
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path, loader: Any = _Loader) -> Any:
    """The content of a YAML file; texts in it have no control characters. None if it is empty.

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
        return _printable(yaml.load(text, loader))  # of the safe loaders
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is no YAML of a run: {printable(first_line(error))}") from None


def read_mapping(path: Path, loader: Any = _Loader) -> dict[str, Any]:
    """The content of a YAML file whose top level has keys, as `read_yaml`.

    Raises:
        OSError: if it cannot be read, or is no file.
        ValueError: with the path, if it is no such YAML.
    """
    found = read_yaml(path, loader)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no YAML of a run: it has no keys")
    return found


def read_words(path: Path) -> list[str]:
    """The content of a YAML file that is a list of texts, such as overrides.

    Raises:
        OSError: if it cannot be read, or is no file.
        ValueError: with the path, if it is no such YAML.
    """
    found = read_yaml(path)
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ValueError(f"{path} is no YAML of a run: it is no list of texts")
    return found


def _check(text: str) -> None:
    """Look at the events only: the parser in C crashes on deep nodes when it composes them."""
    depth = 0
    for num, event in enumerate(yaml.parse(text, PARSER)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has an alias, *NAME; allowed: plain values")
        if depth > _DEEPEST or num > _MOST_NODES:
            raise ValueError(f"allowed: {_MOST_NODES:,} values, {_DEEPEST} inside each other")


def _printable(node: Any) -> Any:
    if isinstance(node, str):
        return printable(node)
    if isinstance(node, dict):
        return {_printable(key): _printable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_printable(value) for value in node]
    if isinstance(node, int) and node.bit_length() > _MOST_BITS:
        raise ValueError(f"a number has {node.bit_length()} bits; allowed: {_MOST_BITS}")
    return node
