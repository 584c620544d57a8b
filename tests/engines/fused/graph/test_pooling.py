"""Pooling before relu changes no number."""

import torch
from torch.nn import functional as F
from tracing import trace

from flfast.engines.fused.graph.executor import executor

aten = torch.ops.aten


def step(state, batch, *, kernel=2, stride=2, read_relu=False):
    x = batch["x"].view(-1, 1, 8, 8)
    with torch.enable_grad():
        w = state["w"].detach().requires_grad_()
        active = F.relu(F.conv2d(x, w))
        pooled = F.max_pool2d(active, kernel, stride)
        loss = pooled.square().mean() + (active.mean() if read_relu else 0)
        (grad,) = torch.autograd.grad(loss, w)
    state["w"].sub_(grad)
    state["loss"].add_(loss.detach())


def ran(fn, rows, size):
    """The operators of the program, after checking it against the function."""
    state = {"w": torch.randn(3, 1, 3, 3, dtype=torch.float64), "loss": torch.zeros(())}
    state["loss"] = state["loss"].double()
    expected = {name: leaf.clone() for name, leaf in state.items()}
    for first in range(0, len(rows), size):
        fn(expected, {"x": rows[first : first + size]})
    module = trace(fn, [state, {"x": rows[:size]}])
    blocks = rows.view(-1, size, *rows.shape[1:])
    executor(module, sliced=1)(list(state.values()), [blocks], num=len(blocks), width=1)
    torch.testing.assert_close(state, expected, rtol=1e-12, atol=1e-12)
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def test_pools_first():
    # Whole numbers: windows are full of ties, and of zeros.
    rows = torch.randint(-1, 2, (12, 64)).double()
    order = ran(step, rows, 4)
    assert order.index(aten.max_pool2d_with_indices.default) < order.index(aten.relu.default)


def test_overlapping_windows():
    def overlapping(state, batch):
        step(state, batch, kernel=3, stride=1)

    order = ran(overlapping, torch.randn(8, 64).double(), 4)
    assert order.index(aten.max_pool2d_with_indices.default) < order.index(aten.relu.default)


def test_a_relu_that_others_read_stays_in_front():
    def both(state, batch):
        step(state, batch, read_relu=True)

    order = ran(both, torch.randn(8, 64).double(), 4)
    assert order.index(aten.max_pool2d_with_indices.default) > order.index(aten.relu.default)
