"""Messages between server and real clients as bytes: trees of tensors, and plain facts.

The format is that of safetensors, whose metadata hold the facts and the shape of the trees as
JSON. Nothing is unpickled. A message is refused unless it is what its reader expects.
"""

import json
import math
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
Count = Annotated[int, Field(ge=0, le=2**53)]
"""A number that someone else has counted."""


class MalformedError(ValueError):
    """A message that is not what its reader expects; its text is the reason."""


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
        if not isinstance(facts, dict) or not isinstance(trees, dict):
            raise TypeError("facts and trees are dicts")

        def restored(node: Any) -> Any:
            if isinstance(node, dict):
                return {name: restored(child) for name, child in node.items()}
            if isinstance(node, list):
                dtype, shape = node
                return torch.empty(shape, dtype=_dtype(dtype), device="meta")
            return tensors[str(node)]

        return Message(facts, {name: restored(tree) for name, tree in trees.items()})
    except (
        safetensors.SafetensorError,
        *(ValueError, TypeError, KeyError, RecursionError, RuntimeError, OverflowError),
    ) as error:
        raise MalformedError(f"no message of flfast: {type(error).__name__}") from error


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no dtype")
    return found


class _SentFacts(BaseModel, strict=True, extra="forbid"):
    weight: float = Field(ge=0, allow_inf_nan=False)
    num_examples: Count
    num_steps: Count
    num_seen: Count
    loss_sum: float
    is_clipped: bool
    is_finite: bool


def message_of(sent: Sent) -> Message:
    """What a client sends, as a message."""
    facts = {name: getattr(sent, name) for name in _SentFacts.model_fields}
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
    if facts.is_finite and not math.isfinite(facts.loss_sum):
        raise MalformedError("loss_sum: is not finite")
    content = message.trees.get("message", {}).get("content", torch.empty(0, dtype=torch.uint8))
    if "upload" not in message.trees or not isinstance(content, Tensor) or content.is_meta:
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
