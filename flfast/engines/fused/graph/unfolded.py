"""Convolutions as products of unfolded images, for stacks of clients on a GPU.

`vmap` makes one convolution with a group for each client of the convolutions of a stack. Groups
are slow in some libraries. `vmapped.py` puts these functions in their place if a trial found them
faster (`run/stack_trial.py`): under `vmap` they become one batched product for all clients.
"""

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def convolution(x: Tensor, w: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    """`aten.convolution` of one client; images are [B, C, H, W].

    `options` are stride, padding, dilation, transposed, output padding and groups.
    """
    if not _fits(w, options):
        return aten.convolution.default(x, w, bias, *options)
    stride, padding = options[:2]
    windows = _windows(x, (w.shape[2], w.shape[3]), stride, padding)
    out = _rows(windows).mm(w.reshape(w.shape[0], -1).t())
    out = out.view(*windows.shape[:3], w.shape[0]).permute(0, 3, 1, 2)
    return out if bias is None else out + bias.view(1, -1, 1, 1)


def convolution_backward(
    grad: Tensor, x: Tensor, w: Tensor, sizes: list[int] | None, *options: Any
) -> tuple[Tensor, ...]:
    """`aten.convolution_backward` of one client: gradients by images, weights and bias.

    The last of the `options` says which are wanted; the others are empty.
    """
    options, mask = options[:-1], options[-1]
    if not _fits(w, options):
        return aten.convolution_backward.default(grad, x, w, sizes, *options, mask)
    stride, padding = options[:2]
    # A step's graph takes the results that it reads; others must be tensors under vmap.
    results = [grad.new_zeros(()) for _ in mask]
    rows = grad.permute(0, 2, 3, 1).reshape(-1, w.shape[0])
    if mask[0]:
        results[0] = _image_gradient(grad, x, w, stride, padding)
    if mask[1]:
        windows = _windows(x, (w.shape[2], w.shape[3]), stride, padding)
        results[1] = rows.t().mm(_rows(windows)).view(w.shape)
    if mask[2]:
        results[2] = rows.sum(0)
    return tuple(results)


def _fits(w: Tensor, options: Any) -> bool:
    """Whether a convolution is of images, without dilation and groups, and not transposed."""
    _, _, dilation, transposed, _, groups = options
    return w.ndim == 4 and [*dilation] == [1, 1] and not transposed and groups == 1


def _image_gradient(
    grad: Tensor, x: Tensor, w: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    """The gradient by the images: a convolution of the spread gradient with the turned weights."""
    size, window = x.shape[2:], w.shape[2:]
    spread = grad
    for axis in (0, 1):
        spread = _spread(spread, axis + 2, stride[axis])
    # Rows and columns of the padded images that no window reached, because of the stride.
    rest = [
        size[axis] + 2 * padding[axis] - window[axis] - spread.shape[axis + 2] + 1
        for axis in (0, 1)
    ]
    before = [window[axis] - 1 - padding[axis] for axis in (0, 1)]
    edges = [before[1], before[1] + rest[1], before[0], before[0] + rest[0]]
    windows = _unfold(torch.constant_pad_nd(spread, edges), (window[0], window[1]), [1, 1])
    out = _rows(windows).mm(w.flip(2, 3).transpose(0, 1).reshape(w.shape[1], -1).t())
    return out.view(x.shape[0], *size, w.shape[1]).permute(0, 3, 1, 2)


def _spread(grad: Tensor, axis: int, stride: int) -> Tensor:
    """Put `stride - 1` zeros between neighbours of an axis."""
    if stride == 1:
        return grad
    grad = grad.unsqueeze(axis + 1)
    zeros = [0, 0] * (grad.ndim - axis - 2) + [0, stride - 1]
    grad = torch.constant_pad_nd(grad, zeros).flatten(axis, axis + 1)
    return grad.narrow(axis, 0, grad.shape[axis] - stride + 1)


def _windows(x: Tensor, window: tuple[int, int], stride: list[int], padding: list[int]) -> Tensor:
    """The windows of images [B, C, H, W], as [B, H', W', C, *window]."""
    if any(padding):
        x = torch.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]])
    return _unfold(x, window, stride)


def _unfold(x: Tensor, window: tuple[int, int], stride: list[int]) -> Tensor:
    views = x.unfold(2, window[0], stride[0]).unfold(3, window[1], stride[1])
    return views.permute(0, 2, 3, 1, 4, 5)


def _rows(windows: Tensor) -> Tensor:
    """One row for each window, [B * H' * W', C * height * width]: a copy."""
    batch, height, width, *rest = windows.shape
    return windows.reshape(batch * height * width, rest[0] * rest[1] * rest[2])
