"""Frozen linear layers whose weights are stored in 8 bits.

A row w of a weight [out, in] is stored as integers in [-127, 127] and a scale, max|w| / 127. A few
rows at a time become floats while a layer computes, and once more in the backward pass.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 2**20
"""Numbers of a weight that are floats at a time."""


class RoundedLinear(nn.Module):
    """Computes as a linear layer with rounded weights; its bias is that layer's.

    Its buffers are `weight`, int8 [out, in], `scale`, float [out, 1], and `bias`.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        # A row of zeros has any scale.
        scale = (weight.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-30)
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        product: Tensor = _Product.apply(x, self.weight, self.scale)
        return product if self.bias is None else product + self.bias

    def as_linear(self) -> nn.Linear:
        """A plain layer with the rounded weights."""
        num_out, num_in = self.weight.shape
        with torch.device("meta"):
            linear = nn.Linear(num_in, num_out, bias=False)
        linear.weight = nn.Parameter(self.weight * self.scale)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias)
        return linear


def has_rounded(model: nn.Module) -> bool:
    """Whether weights of the model have 8 bits."""
    return any(isinstance(module, RoundedLinear) for module in model.modules())


class _Product(torch.autograd.Function):
    """x W^T in blocks of rows of W; autograd's own would keep the floats of all of W."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        blocks = _blocks(weight, scale, x.dtype)
        return torch.cat([F.linear(x, block) for block in blocks], dim=-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        weight, scale = ctx.saved_tensors
        size = _rows(weight)
        parts = zip(grad.split(size, dim=-1), _blocks(weight, scale, grad.dtype), strict=True)
        total = functools.reduce(Tensor.add, (part @ block for part, block in parts))
        return total, None, None


def _rows(weight: Tensor) -> int:
    return max(BLOCK // weight.shape[1], 1)


def _blocks(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Floats of a block of rows at a time."""
    size = _rows(weight)
    for rows, factors in zip(weight.split(size), scale.split(size), strict=True):
        yield rows.to(dtype).mul_(factors.to(dtype))
