"""Tracing: from a function of trees to a straight line of torch operators, without autograd."""

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from flfast.engines.fused.graph.pooling import pool_first
from flfast.engines.fused.graph.rewrite import rewrite
from flfast.engines.fused.native.lowering import lower
from flfast.state.tree import Tree, leaves


def trace(fn: Callable[..., None], trees: Sequence[Tree]) -> GraphModule:
    """The operators that `fn(*trees)` runs, rewritten; see `operators`."""
    return rewritten(operators(fn, trees))


def rewritten(module: GraphModule) -> GraphModule:
    """The module with its graph rewritten."""
    return lowered(simplified(module))


def simplified(module: GraphModule) -> GraphModule:
    """The module with fewer operators, all of them torch's."""
    rewrite(module.graph)
    pool_first(module.graph)
    return module


def lowered(module: GraphModule) -> GraphModule:
    """The module with our kernels where they are faster."""
    lower(module.graph)
    module.recompile()
    return module


def operators(fn: Callable[..., None], trees: Sequence[Tree]) -> GraphModule:
    """The operators that `fn(*trees)` runs, as a graph over the trees' leaves.

    Args:
        fn: changes leaves in place and returns nothing.
        trees: of tensors; shapes, types and devices are what counts, no value is changed.

    Returns:
        A graph module; its inputs are the leaves in order, then its own constants.

    Raises:
        Exception: whatever torch says where Python decides on values.
    """

    def run(*tensors: Tensor) -> tuple[()]:
        rest = iter(tensors)
        fn(*(_rebuild(tree, rest) for tree in trees))
        return ()

    # Weights cast for autocast are cached; a cache must not outlive or precede the trace.
    torch.clear_autocast_cache()
    try:
        # Stand-ins: autograd refuses tensors that were made in inference mode.
        return record(run, [like(leaf) for tree in trees for leaf in leaves(tree)])
    finally:
        torch.clear_autocast_cache()


def record(run: Callable[..., tuple[()]], tensors: Sequence[Tensor]) -> GraphModule:
    """The operators that `run(*tensors)` runs on tensors of such shapes."""
    _look_for_devices()
    # Real tensors that the function holds become constants of the graph.
    return make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


@cache
def _look_for_devices() -> None:
    """Let autograd look for devices, which it does once, before fake tensors say there is CUDA.

    It would start a thread for each, and no rank could be forked from this process ever after.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        torch.zeros((), device="cpu", requires_grad=True).backward()


def like(leaf: Tensor, width: int | None = None) -> Tensor:
    """A tensor of the same shape and strides without values, or `width` of them in a row."""
    shape, stride = tuple(leaf.shape), leaf.stride()
    if width is not None:
        shape, stride = (width, *shape), (leaf.numel(), *stride)
    return torch.empty_strided(shape, stride, dtype=leaf.dtype, device=leaf.device)


def constants(module: GraphModule) -> dict[str, Tensor]:
    """Tensors that the traced function made from Python values, by name in the graph."""
    found = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            found[node.name] = attrgetter(str(node.target))(module)
    return found


def placeholders(graph: Graph) -> list[Node]:
    """The graph's inputs."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def _rebuild(tree: Tree, rest: Any) -> Tree:
    return {
        name: _rebuild(leaf, rest) if isinstance(leaf, dict) else next(rest)
        for name, leaf in tree.items()
    }
