"""Messages that no honest process sends: each field of a message changed to something else."""

from copy import deepcopy

import torch
from hypothesis import strategies as st

from flfast.channel.wire import Message

TEXTS = ("", "x", "../../../tmp/x", "\x1b[2J\x1b]0;title\x07", "\u202e\ud800", "long " * 20_000)
NUMBERS = (
    *(-1, 0, 1, 2, 9, 2**31, 2**53, 2**63, 2**200, -(2**63)),
    *(-5.0, 0.5, 1.0, 1e30, 1e39, 1e308, float("inf"), -float("inf"), float("nan")),
)
NESTED = ([], {}, [[[[[]]]]], {"a": {"b": {"c": []}}}, [None], {"": 1})
VALUES = st.sampled_from((None, True, False, *TEXTS, *NUMBERS, *NESTED))
TENSORS = st.sampled_from(
    (
        torch.zeros(()),
        torch.zeros(0),
        torch.full((3,), 3e38),
        torch.full((3,), torch.nan),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(3, dtype=torch.bool),
        torch.full((3,), 2**62),
        torch.empty(2**40, device="meta"),
        torch.empty(3, device="meta", dtype=torch.bfloat16),
        {},
        {"x": torch.zeros(1)},
        {"a": {"b": {"c": torch.zeros(1)}}},
    )
)
LEAVES = (
    lambda leaf: torch.full_like(leaf, torch.nan) if leaf.is_floating_point() else leaf[:0],
    lambda leaf: torch.full_like(leaf, 3e38) if leaf.is_floating_point() else leaf.bool(),
    lambda leaf: torch.full_like(leaf, -1e20) if leaf.is_floating_point() else leaf.float(),
    lambda leaf: torch.full_like(leaf, torch.inf) if leaf.is_floating_point() else -leaf - 1,
    lambda leaf: leaf.double() if leaf.is_floating_point() else leaf.half(),
    lambda leaf: leaf.bfloat16(),
    lambda leaf: leaf.to("meta"),
    lambda leaf: leaf[None],
    lambda leaf: leaf.flatten()[:-1],
    lambda leaf: {"leaf": leaf},
)
"""Changes of a tensor to one of other values, of another type or shape, or to none."""


def places(node, path=()):
    """Paths of all fields of nested dicts and lists."""
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in children:
        yield (*path, key)
        if isinstance(child, (dict, list, tuple)):
            yield from places(child, (*path, key))


def listed(node):
    """Nested dicts and lists, with lists in place of tuples."""
    if isinstance(node, dict):
        return {key: listed(child) for key, child in node.items()}
    return [listed(child) for child in node] if isinstance(node, (list, tuple)) else node


@st.composite
def mutated(draw, message):
    """The message with a field of its facts or trees changed, removed or added, once or twice."""
    parts = {"facts": listed(message.facts), "trees": deepcopy(dict(message.trees))}
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(("facts", "trees") if parts["trees"] else ("facts",)))
        found = [*places(parts[name])]
        path = draw(st.sampled_from(found)) if found else ("more",)
        node = parts[name]
        for key in path[:-1]:
            node = node[key]
        how = draw(st.sampled_from(("set", "set", "remove", "add")))
        key, leaf = path[-1], None if not found else node[path[-1]]
        value = draw(VALUES)
        if name == "trees":
            value = draw(TENSORS)
            if isinstance(leaf, torch.Tensor) and draw(st.booleans()):
                value = draw(st.sampled_from(LEAVES))(leaf)
        if how == "remove" and found:
            del node[key]
        elif how == "add" and isinstance(node, dict):
            node[draw(st.sampled_from(("more", "__class__", "x" * 100_000)))] = deepcopy(value)
        else:
            node[key] = deepcopy(value)
    return Message(parts["facts"], parts["trees"])
