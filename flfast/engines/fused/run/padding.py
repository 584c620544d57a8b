"""Tests whether a batch may be padded with examples of weight zero.

`one_client.py` asks once per stage, before it makes the step schedule. Padding lets batches of
similar sizes share one program (`step_schedule.padded_size`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flfast.engines.fused.graph.local_step import LocalStep
from flfast.state.tree import Tree, leaves, tree_map


def padding_changes_results(
    step: LocalStep, trees: Sequence[Tree], rows: Sequence[Tensor]
) -> bool:
    """Whether one more example of weight zero changes a gradient, a buffer or the loss.

    It does where an example's output depends on the rest of its batch, as with BatchNorm. It also
    does where random numbers depend on the batch size, as with dropout.

    Args:
        step: the local step.
        trees: state with `grads`, context and settings; they are not changed.
        rows: inputs and targets of at least two examples. The last one is the padding. With fewer
            examples the answer is True.
    """
    num = len(rows[0]) - 1
    if num < 1:
        return True
    with torch.inference_mode(mode=False):
        plain, padded = (_step_results(step, trees, rows, num=num, size=num + i) for i in (0, 1))
    return not all(map(nearly_equal, plain, padded))


def _step_results(
    step: LocalStep, trees: Sequence[Tree], rows: Sequence[Tensor], *, num: int, size: int
) -> list[Tensor]:
    """Loss, gradients and buffers after a batch of `num` examples padded to `size`."""
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
    """Whether two tensors differ by rounding only; integers must be equal."""
    if not left.is_floating_point():
        return torch.equal(left, right)
    rounding = max(0.01, 8 * torch.finfo(left.dtype).eps)
    return bool((right - left).abs().max() <= rounding * left.abs().max())
