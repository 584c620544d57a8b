"""Messages between server and real clients as bytes: trees of tensors, and plain facts.

The format is that of safetensors, whose metadata hold the facts and the shape of the trees as
JSON. Nothing is unpickled. A message is refused unless it is what its reader expects.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from flfast.channel.sent import Sent
from flfast.state.tree import Tree

_KEY = "flfast"
_DEEPEST, _LONGEST = 32, 500
LARGEST = 1e14
"""Of a number in an upload. The squares of a billion of them have a sum in float32."""
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
"""A number that someone else has counted."""
Positive = Annotated[int, Field(strict=True, ge=1, le=2**53)]
NonNegative = Annotated[float, Field(strict=True, ge=0, le=1e30)]
"""A number that someone else has measured."""


def readable(text: str) -> str:
    """A text of someone else for logs, tables and screens: in one line, bounded and escaped."""
    line = " ".join(text[:_LONGEST].split())
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


class MalformedError(ValueError):
    """A message that is not what its reader expects; its text is the reason."""

    def __init__(self, text: str) -> None:
        super().__init__(readable(text))


class Message(NamedTuple):
    """What is sent: facts, which are plain values, and trees of tensors by name."""

    facts: Mapping[str, Any]
    trees: Mapping[str, Tree] = {}


def pack(message: Message) -> bytes:
    """The bytes of a message. Meta tensors are sent as a shape and a dtype."""
    found: list[Tensor] = []

    def described(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: described(child) for name, child in node.items()}
        if node.is_meta:
            return [str(node.dtype).removeprefix("torch."), list(node.shape)]
        found.append(node)
        return len(found) - 1

    about = {"facts": message.facts, "trees": described(dict(message.trees))}
    tensors = {
        str(place): leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
        for place, leaf in enumerate(found)
    }
    return safetensors.torch.save(tensors, {_KEY: json.dumps(about)})


def unpack(data: bytes) -> Message:
    """The message of some bytes.

    Raises:
        MalformedError: if they are no message.
    """
    try:
        tensors = safetensors.torch.load(data)
        size = int.from_bytes(data[:8], "little")
        about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_KEY])
        facts, trees = about["facts"], about["trees"]
        if not all(isinstance(part, dict) for part in (facts, trees, *trees.values())):
            raise TypeError("facts and trees are dicts")

        def restored(node: Any, depth: int) -> Any:
            if isinstance(node, dict) and depth < _DEEPEST:
                return {name: restored(child, depth + 1) for name, child in node.items()}
            if isinstance(node, list):
                dtype, shape = node
                return torch.empty(shape, dtype=dtype_of(dtype), device="meta")
            return tensors.pop(str(node))  # each is sent once

        return Message(facts, restored(trees, 0))
    except (
        safetensors.SafetensorError,
        *(ValueError, TypeError, KeyError, RuntimeError, OverflowError, AttributeError),
    ) as error:
        raise MalformedError(f"no message of flfast: {type(error).__name__}") from error


def dtype_of(name: str) -> torch.dtype:
    """The data type of a name such as `float32`.

    Raises:
        TypeError: if there is none.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no dtype")
    return found


class _SentFacts(BaseModel, strict=True, extra="forbid"):
    weight: float = Field(ge=0, le=2**31)
    num_examples: Count
    num_steps: Count
    num_seen: Count
    loss_sum: float
    is_clipped: bool
    is_finite: bool
    logged: dict[Annotated[str, Field(max_length=100)], float] = Field(max_length=100)


def message_of(sent: Sent) -> Message:
    """What a client sends, as a message."""
    facts = {name: getattr(sent, name) for name in _SentFacts.model_fields}
    facts["logged"] = dict(sent.logged)
    trees = {"upload": sent.upload}
    if sent.message:
        content = torch.frombuffer(bytearray(sent.message), dtype=torch.uint8)
        trees["message"] = {"content": content}
    return Message(facts, trees)


def sent_of(message: Message) -> Sent:
    """What a client has sent; its upload is not checked yet.

    Raises:
        MalformedError: if a fact is missing, or out of its range.
    """
    facts = read_facts(_SentFacts, message)
    if facts.is_finite and not abs(facts.loss_sum) <= 1e30 * max(facts.num_seen, 1):
        raise MalformedError(f"loss_sum: is {facts.loss_sum:g}")
    content = message.trees.get("message", {}).get("content", torch.empty(0, dtype=torch.uint8))
    is_content = isinstance(content, Tensor) and content.dtype == torch.uint8
    if "upload" not in message.trees or not is_content or content.is_meta:
        raise MalformedError("no upload")
    return Sent(message.trees["upload"], content.numpy().tobytes(), **facts.model_dump())


Facts = TypeVar("Facts", bound=BaseModel)


def read_facts(kind: type[Facts], message: Message) -> Facts:
    """The checked facts of a message.

    Raises:
        MalformedError: with the first fact that is missing, or not what it should be.
    """
    try:
        return kind.model_validate(message.facts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise MalformedError(f"{where}: {first['msg']}") from None
