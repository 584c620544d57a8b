"""Whether a batch may be padded with examples of weight zero."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flfast.engines.fused.graph.local_step import LocalStep
from flfast.state.tree import Tree, leaves, tree_map


def notices_padding(step: LocalStep, trees: Sequence[Tree], rows: Sequence[Tensor]) -> bool:
    """Whether one more example of weight zero changes a gradient, a buffer or the loss.

    It does where examples of a batch see each other, as in BatchNorm, and where random numbers
    depend on the size of a batch, as in dropout.

    Args:
        step: the local step.
        trees: state with `grads`, context and settings; no value is changed.
        rows: inputs and targets of at least two examples, of which the last is the padding;
            of fewer the answer is yes.
    """
    num = len(rows[0]) - 1
    if num < 1:
        return True
    with torch.inference_mode(mode=False):
        plain, padded = (_after(step, trees, rows, num=num, size=num + i) for i in (0, 1))
    return not all(map(nearly_equal, plain, padded))


def _after(
    step: LocalStep, trees: Sequence[Tree], rows: Sequence[Tensor], *, num: int, size: int
) -> list[Tensor]:
    state, context, settings = (tree_map(torch.clone, tree) for tree in trees)
    weights = torch.zeros(size, dtype=state["loss"].dtype, device=state["loss"].device)
    weights[:num] = 1 / num
    count, share = weights.new_tensor([num, 1.0]).unbind()
    inputs, targets = (row[:size].clone() for row in rows)
    batch = {
        "inputs": inputs,
        "targets": targets,
        "weights": weights,
        "num": count,
        "share": share,
    }
    device = weights.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        step.accumulate(state, context, settings, batch)
    return [state["loss"], *leaves(state["grads"]), *leaves(state["buffers"])]


def nearly_equal(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors differ by no more than rounding; integers not at all."""
    if not left.is_floating_point():
        return torch.equal(left, right)
    rounding = max(0.01, 8 * torch.finfo(left.dtype).eps)
    return bool((right - left).abs().max() <= rounding * left.abs().max())
