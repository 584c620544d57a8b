"""What a step computes of examples with weights that it does not change: once, not in every pass.

FedRep trains a head on the features of a body that rests; MOON compares with the features of two
models that rest.
"""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from flfast.engines.fused.graph.dataflow import (
    changed_nodes,
    is_mutable,
    is_random,
    is_view,
    remove_unused,
)
from flfast.engines.fused.graph.trace import placeholders

aten = torch.ops.aten

_COSTLY = {
    aten.convolution.default,
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.embedding.default,
}


class Halves(NamedTuple):
    """A step in two.

    Attributes:
        first: writes features into its last inputs, one for each.
        rest: the step, with features behind the rows that it still reads.
        reads: of every row, whether the rest reads it.
        features: stand-ins for those of a batch, [B, ...].
    """

    first: GraphModule
    rest: GraphModule
    reads: list[bool]
    features: list[Tensor]


def halves(module: GraphModule, *, sliced: int, varying: Collection[int]) -> Halves | None:
    """A step's frozen part, and the rest; None if there is none that is worth it.

    Args:
        module: of a step whose batches may be padded: no example sees another.
        sliced: number of its last inputs that are rows, each [B, ...].
        varying: numbers of other inputs that are not the same in every pass, though this step
            may not change them: weights that others change, what describes the batch as a whole.
    """
    graph = module.graph
    inputs = placeholders(graph)
    fixed, rows = inputs[: len(inputs) - sliced], inputs[len(inputs) - sliced :]
    frozen = _frozen(graph, rows, {inputs[place] for place in varying})
    features = [node for node in graph.nodes if node in frozen and node.users.keys() - frozen]
    values = [node.meta["val"] for node in features]
    # The rest knows where features lie in memory.
    if not features or not all(isinstance(v, Tensor) and v.is_contiguous() for v in values):
        return None
    rest, reads = _rest(graph, fixed, rows, frozen, features)
    first = _first(graph, inputs, features)
    return Halves(GraphModule(module, first), GraphModule(module, rest), reads, values)


def _frozen(graph: Graph, rows: list[Node], varying: set[Node]) -> set[Node]:
    """Costly operators on examples, and what follows, as far as nothing that changes is read."""
    steady = _steady(graph, rows, varying)
    frozen: dict[Node, None] = {}  # in order
    of_rows = set(rows)
    for node in steady:
        read = set(node.all_input_nodes)
        if read & of_rows:
            of_rows.add(node)
            if node.target in _COSTLY or read & frozen.keys():
                frozen[node] = None
    # A view of a feature takes no time, but would take memory.
    for node in reversed(list(frozen)):
        if is_view(node) and not node.users.keys() & frozen.keys():
            del frozen[node]
    return set(frozen)


def _steady(graph: Graph, rows: list[Node], varying: set[Node]) -> list[Node]:
    """What gives the same for an example in every pass, in order."""
    num = rows[0].meta["val"].shape[0]
    changed = changed_nodes(graph) | varying
    steady: dict[Node, None] = {}
    of_rows = set(rows)
    for node in graph.nodes:
        if node.op in {"placeholder", "get_attr"}:
            if node not in changed:
                steady[node] = None
        elif _repeats(node, changed) and steady.keys() >= set(node.all_input_nodes):
            reads_rows = not of_rows.isdisjoint(node.all_input_nodes)
            if not reads_rows or _by_example(node, num):
                steady[node] = None
            if reads_rows:
                of_rows.add(node)
    return list(steady)


def _repeats(node: Node, changed: set[Node]) -> bool:
    """Whether an operator gives the same again."""
    return not (
        node.op != "call_function" or node in changed or is_mutable(node) or is_random(node)
    )


def _by_example(node: Node, num: int) -> bool:
    """Whether a value has `num` rows."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else [value]
    return all(isinstance(part, Tensor) and part.shape[:1] == (num,) for part in parts)


def _first(graph: Graph, inputs: list[Node], features: list[Node]) -> Graph:
    """A graph that writes features where its last inputs are."""
    needed: set[Node] = set()
    pending = list(features)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    new = Graph()
    copies = {node: new.node_copy(node) for node in inputs}
    places = [_feature(new, i, node) for i, node in enumerate(features)]
    for node in graph.nodes:
        if node in needed and node not in copies:
            copies[node] = new.node_copy(node, copies.__getitem__)
    for place, node in zip(places, features, strict=True):
        new.call_function(aten.copy_.default, (place, copies[node]))
    new.output(())
    return new


def _rest(
    graph: Graph, fixed: list[Node], rows: list[Node], frozen: set[Node], features: list[Node]
) -> tuple[Graph, list[bool]]:
    """The graph without what is frozen, and of every row, whether it is read."""
    new = Graph()
    copies = {node: new.node_copy(node) for node in (*fixed, *rows)}
    copies |= {node: _feature(new, i, node) for i, node in enumerate(features)}
    for node in graph.nodes:
        if node.op in {"call_function", "get_attr"} and node not in frozen:
            copies[node] = new.node_copy(node, copies.__getitem__)
    new.output(())
    remove_unused(new)
    reads = [bool(copies[row].users) for row in rows]
    for row, read in zip(rows, reads, strict=True):
        if not read:
            new.erase_node(copies[row])
    return new, reads


def _feature(graph: Graph, number: int, like: Node) -> Node:
    place = graph.placeholder(f"feature_{number}")
    place.meta = dict(like.meta)
    return place
