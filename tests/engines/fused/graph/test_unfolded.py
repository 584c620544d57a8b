"""Unfolded convolutions are torch's, with all strides and paddings, alone and under vmap."""

import pytest
import torch
from torch.func import vmap

from flfast.engines.fused.graph import unfolded

aten = torch.ops.aten

# channels, outputs, window, stride, padding, height, width
SHAPES = [
    (1, 4, (5, 5), (1, 1), (2, 2), 9, 9),
    (3, 6, (5, 5), (1, 1), (0, 0), 8, 10),
    (3, 4, (3, 3), (2, 2), (1, 1), 9, 8),
    (2, 3, (1, 1), (2, 2), (0, 0), 7, 8),
    (3, 5, (7, 7), (2, 2), (3, 3), 12, 11),
    (2, 2, (3, 2), (3, 1), (0, 1), 9, 6),
    (2, 3, (1, 1), (1, 1), (1, 1), 4, 4),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_unfolded_convolutions_are_those_of_torch(shape):
    channels, outputs, window, stride, padding, height, width = shape
    generator = torch.Generator().manual_seed(0)
    drawn = {"dtype": torch.double, "generator": generator}
    x = torch.randn(3, 4, channels, height, width, **drawn)
    w, bias = torch.randn(3, outputs, channels, *window, **drawn), torch.randn(3, outputs, **drawn)
    options = [*stride], [*padding], [1, 1], False, [0, 0], 1
    clients = range(3)
    expected = [aten.convolution.default(x[k], w[k], bias[k], *options) for k in clients]
    found = vmap(lambda *args: unfolded.convolution(*args, *options))(x, w, bias)
    torch.testing.assert_close(found, torch.stack(expected))
    grad, mask = torch.randn(found.shape, **drawn), [True, True, True]
    backward = [
        aten.convolution_backward.default(grad[k], x[k], w[k], [outputs], *options, mask)
        for k in clients
    ]
    found = vmap(lambda *args: unfolded.convolution_backward(*args, [outputs], *options, mask))(
        grad, x, w
    )
    for stacked, alone in zip(found, zip(*backward, strict=True), strict=True):
        torch.testing.assert_close(stacked, torch.stack(alone))
