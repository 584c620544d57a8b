"""Tracing: records the torch operators of a local step, backward pass included, as a flat graph.

`programs.py` traces a step of `local_step.py` first. Then `rewrite.py`, `pooling.py` and
`lowering.py` change the graph, before `executor.py` compiles it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from flfast.engines.fused.graph.lowering import lower
from flfast.engines.fused.graph.lstm_kernel import keep_workspace
from flfast.engines.fused.graph.pooling import pool_first
from flfast.engines.fused.graph.rewrite import rewrite
from flfast.engines.fused.graph.skipped_passes import skipped
from flfast.state.tree import Tree, leaves


def rewritten(module: GraphModule) -> GraphModule:
    """The module with all rewriting done, ready to compile; changed in place."""
    return lowered(simplified(module))


def simplified(module: GraphModule) -> GraphModule:
    """The module with fewer operators, all of them torch's own; changed in place."""
    skip = skipped()
    if "rewriting" not in skip:
        rewrite(module.graph)
    if "pooling" not in skip:
        pool_first(module.graph)
    return module


def lowered(module: GraphModule) -> GraphModule:
    """The module with our C++ kernels where they are faster; changed in place."""
    skip = skipped()
    if "kernels" not in skip:
        lower(module.graph, skip)
    keep_workspace(module)
    module.recompile()
    return module


def operators(fn: Callable[..., None], trees: Sequence[Tree]) -> GraphModule:
    """Trace `fn(*trees)` into a graph over the trees' leaves.

    `fn` changes leaves in place and returns nothing. Of the trees, only shapes, types and devices
    are read; no value is changed.

    Returns:
        A graph module. Its inputs are the leaves in order; constants are its attributes.

    Raises:
        Exception: any exception of torch, where Python branches on values of tensors.
    """

    def run(*tensors: Tensor) -> tuple[()]:
        rest = iter(tensors)
        fn(*(_rebuild(tree, rest) for tree in trees))
        return ()

    # Autocast caches the weights that it casts. Casts cached before the trace would be missing
    # from the graph, and fake tensors must not stay in the cache.
    torch.clear_autocast_cache()
    try:
        return record(run, stand_ins(leaf for tree in trees for leaf in leaves(tree)))
    finally:
        torch.clear_autocast_cache()


def record(run: Callable[..., Any], tensors: Sequence[Tensor]) -> GraphModule:
    """Trace `run(*tensors)`, where the tensors are those of `stand_ins`."""
    # Real tensors that `run` refers to become constants of the graph.
    return make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


def stand_ins(
    given: Iterable[Tensor], widths: Iterable[int | None] = repeat(None)
) -> list[Tensor]:
    """Fake tensors `like` the given ones: copies of a large model would not fit in memory."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # which imports sympy

    _let_autograd_find_devices()
    # As `make_fx` would make it.
    with config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        mode = FakeTensorMode(
            allow_fallback_kernels=True,
            allow_non_fake_inputs=True,
            shape_env=ShapeEnv(),
            static_shapes=True,
        )
    with mode:
        return [like(leaf, width) for leaf, width in zip(given, widths, strict=False)]


@cache
def _let_autograd_find_devices() -> None:
    """Run a first backward pass, in which autograd looks for devices, before tracing.

    While fake tensors are traced, torch reports a CUDA device. Autograd would start a thread for
    it, and no rank could be forked from this process afterwards.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        torch.zeros((), device="cpu", requires_grad=True).backward()


def like(leaf: Tensor, width: int | None = None) -> Tensor:
    """An empty tensor of the same shape and strides; with `width` a leading axis of that size."""
    shape, stride = tuple(leaf.shape), leaf.stride()
    if width is not None:
        shape, stride = (width, *shape), (leaf.numel(), *stride)
    return torch.empty_strided(shape, stride, dtype=leaf.dtype, device=leaf.device)


def constants(module: GraphModule) -> dict[str, Tensor]:
    """Tensors that the traced function refers to beside its arguments, by name in the graph."""
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
