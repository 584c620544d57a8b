"""Messages between server and real clients as bytes: trees of tensors, and plain facts.

The format is that of safetensors, whose metadata hold the facts and the shape of the trees as JSON.
Nothing is unpickled. A message is refused unless it is what its reader expects.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from flfast.channel.sent import Sent
from flfast.state.tree import Tree

_KEY = "flfast"
_COUNTS = ("num_examples", "num_steps", "num_seen")
_FLAGS = ("is_clipped", "is_finite")
_NUMBERS = ("weight", "loss_sum")


class MalformedError(ValueError):
    """A message that is not what its reader expects; its text is the reason."""


class Message(NamedTuple):
    """What is sent: facts, which are plain values, and trees of tensors by name."""

    facts: Mapping[str, Any]
    trees: Mapping[str, Tree] = {}  # noqa: RUF012 - never changed


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


def message_of(sent: Sent) -> Message:
    """What a client sends, as a message."""
    facts = {name: getattr(sent, name) for name in (*_NUMBERS, *_COUNTS, *_FLAGS)}
    trees = {"upload": sent.upload}
    if sent.message:
        content = torch.frombuffer(bytearray(sent.message), dtype=torch.uint8)
        trees["message"] = {"content": content}
    return Message(facts, trees)


def sent_of(message: Message) -> Sent:
    """What a client has sent; tensors are not checked yet.

    Raises:
        MalformedError: if a fact is missing, or out of its range.
    """
    facts = message.facts
    for name in _COUNTS:
        if type(facts.get(name)) is not int or not 0 <= facts[name] < 2**63:
            raise MalformedError(f"{name} is no count")
    for name in _FLAGS:
        if type(facts.get(name)) is not bool:
            raise MalformedError(f"{name} is neither true nor false")
    for name in _NUMBERS:
        if type(facts.get(name)) not in {int, float}:
            raise MalformedError(f"{name} is no number")
    if not (math.isfinite(facts["weight"]) and facts["weight"] >= 0):
        raise MalformedError("weight is not in [0, infinity)")
    if facts["is_finite"] and not math.isfinite(facts["loss_sum"]):
        raise MalformedError("loss_sum is not finite")
    if "upload" not in message.trees:
        raise MalformedError("there is no upload")
    content = message.trees.get("message", {}).get("content")
    if content is None:
        encoded = b""
    elif isinstance(content, Tensor) and content.dtype == torch.uint8 and not content.is_meta:
        encoded = content.numpy().tobytes()
    else:
        raise MalformedError("the encoded message is not made of bytes")
    values = {name: facts[name] for name in (*_COUNTS, *_FLAGS)}
    numbers = {name: float(facts[name]) for name in _NUMBERS}
    return Sent(message.trees["upload"], encoded, **values, **numbers)
