"""Instructions in JSONL files, in the three forms in which instruction data are published."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flfast.state.regular_file import read_text, reading

ROLES = ("system", "user", "assistant")
_FORMS = "allowed: messages; instruction, output and optionally input; or prompt and completion"


class Conversation(NamedTuple):
    """Messages `{"role": ..., "content": ...}`, at least one of them an answer behind others.

    Attributes:
        client: name of its client; None if unknown.
        where: file and line, for errors.
    """

    messages: list[dict[str, str]]
    client: str | int | None
    where: str


def read_conversations(root: str, client_column: str | None) -> list[Conversation]:
    """All conversations of one JSONL file, or of a folder with a file `CLIENT.jsonl` per client.

    Raises:
        ValueError: with file and line, if something is missing or has another form.
    """
    place = Path(root).expanduser()
    files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    if not files:
        raise ValueError(f"data.root={root} has no *.jsonl; expected a file for each client")
    if place.is_dir() and client_column is not None:
        raise ValueError(
            f"data.client_column={client_column}: the files in data.root={root} name the clients; "
            "allowed: null, or one file"
        )
    return [
        Conversation(_messages(row, where), _client(row, path, client_column, place, where), where)
        for path in files
        for where, row in _rows(path)
    ]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """File and line, and the object on the line."""
    with reading(f"data.root: {path} is not a readable UTF-8 text"):
        lines = read_text(path).split("\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path} line {number}"
            with reading(f"{where} is not readable JSON", RecursionError):
                row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"{where} is {line[:40]!r}; allowed: a JSON object")
            yield where, row
    if not any(map(str.strip, lines)):
        raise ValueError(f"{path}: the file is empty; allowed: a JSON object on each line")


def _client(
    row: dict[str, Any], path: Path, column: str | None, root: Path, where: str
) -> str | int | None:
    if column is None:
        return path.stem if root.is_dir() else None
    name = row.get(column)
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise ValueError(f"{where}: data.client_column={column} is {name!r}; allowed: a name")
    return name


def _messages(row: dict[str, Any], where: str) -> list[dict[str, str]]:
    keys = [key for key in ("messages", "instruction", "prompt") if key in row]
    if len(keys) != 1:
        raise ValueError(f"{where} has {', '.join(keys or row)}; {_FORMS}")
    if keys == ["messages"]:
        return _checked(row["messages"], where)
    answer = "output" if keys == ["instruction"] else "completion"
    texts = [_text(row.get(key), where, key) for key in (keys[0], answer)]
    if keys == ["instruction"] and row.get("input") not in (None, ""):
        texts[0] += f"\n\n{_text(row['input'], where, 'input')}"
    return [{"role": r, "content": t} for r, t in zip(ROLES[1:], texts, strict=True)]


def _checked(messages: object, where: str) -> list[dict[str, str]]:
    found = messages if isinstance(messages, list) else []
    for number, message in enumerate(found, 1):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise ValueError(f"{where}: message {number} must have role and content, only these")
        if message["role"] not in ROLES:
            raise ValueError(
                f"{where}: message {number} has role {message['role']!r}; allowed: "
                f"{', '.join(ROLES)}"
            )
        _text(message["content"], where, f"content of message {number}")
    if "assistant" not in [message["role"] for message in found[1:]]:
        raise ValueError(f"{where}: messages must have an assistant's behind another one")
    return found


def _text(value: object, where: str, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {key} is {str(value)[:40]!r}; allowed: a text")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{where}: {key} has half of a surrogate pair, which is no character")
    return value
