"""Convolutions with pool and ReLU become one operator, which trains as torch's do."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from engine_runs import assert_engines_agree
from torch import nn
from torch.nn import functional as F
from tracing import trace

from flfast.engines.fused.graph.executor import executor
from flfast.engines.fused.graph.skipped_passes import VARIABLE
from flfast.engines.fused.graph.trace import operators
from flfast.lit.channels_last import channels_last, use_channels_last
from flfast.models.cnn import cnn
from flfast.state.plan import Batching
from flfast.zoo.models.lenet import lenet

pytestmark = pytest.mark.usefixtures("kernels")
SAME, POOL = partial(F.conv2d, padding=1), partial(F.max_pool2d, kernel_size=2)
BOTH = ["flfast.conv_pool.default", "flfast.conv_pool_backward.default"]


def step(
    state,
    batch,
    *,
    convolve=SAME,
    pool=POOL,
    relu=torch.relu,
    others=lambda _: 0.0,
    with_bias=True,
):
    """A local step of two convolutions."""
    with torch.enable_grad():
        w1, w2, b1 = (state[name].detach().requires_grad_() for name in ("w1", "w2", "b1"))
        first = pool(relu(convolve(batch["x"], w1, b1 if with_bias else None)))
        outputs = convolve(first, w2)
        hidden = pool(relu(outputs)).flatten(1)
        loss = F.linear(hidden, state["w3"][:, : hidden.shape[1]]).square().mean()
        grads = torch.autograd.grad(loss + others(outputs), (w1, w2, b1), allow_unused=True)
    for name, grad in zip(("w1", "w2", "b1"), grads, strict=True):
        if grad is not None:
            state[name].sub_(grad)


def leaf(*shape, dtype=torch.float32, layout=torch.channels_last):
    found = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)
    return found.contiguous(memory_format=layout) / shape[1] if len(shape) == 4 else found / 9


def joined(fn, **options):
    """Our convolutions in the graph, after comparing the states of graphs with and without."""
    state = {
        "w1": leaf(8, 3, 3, 3, **options),
        "w2": leaf(8, 8, 3, 3, **options),
        "b1": leaf(8, dtype=options.get("dtype", torch.float32)),
        "w3": leaf(5, 800, dtype=options.get("dtype", torch.float32)),
    }
    rows = torch.stack([leaf(4, 3, 12, 12, **options) for _ in range(3)])
    rows = torch.stack([row * (i + 1) for i, row in enumerate(rows)])
    trees = [state, {"x": leaf(4, 3, 12, 12, **options)}]
    found = []
    for module in (operators(fn, trees), trace(fn, trees)):
        leaves = [leaf.clone() for leaf in state.values()]
        executor(module, sliced=1)(leaves, [rows], num=len(rows), width=1)
        found.append(leaves)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    calls = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    return sorted({call for call in calls if "conv_pool" in call})


def test_both_convolutions_of_a_step():
    assert joined(step) == BOTH
    assert joined(partial(step, with_bias=False)) == BOTH


@pytest.mark.parametrize(
    "options",
    [
        {"pool": partial(F.max_pool2d, kernel_size=3)},
        {"pool": partial(F.max_pool2d, kernel_size=2, stride=1)},
        {"pool": partial(F.max_pool2d, kernel_size=2, padding=1)},
        {"pool": partial(F.max_pool2d, kernel_size=2, ceil_mode=True)},
        {"pool": partial(F.avg_pool2d, kernel_size=2)},
        {"relu": torch.tanh},
        {"convolve": partial(F.conv2d, stride=2, padding=3)},
        {"convolve": partial(F.conv2d, dilation=2, padding=2)},
    ],
)
def test_others_stay_with_torch(options):
    assert joined(partial(step, **options)) == []


def test_one_whose_outputs_are_read_elsewhere_stays_with_torch():
    graph = trace(
        partial(step, others=torch.mean),
        [
            {"w1": leaf(8, 3, 3, 3), "w2": leaf(8, 8, 3, 3), "b1": leaf(8), "w3": leaf(5, 800)},
            {"x": leaf(4, 3, 12, 12)},
        ],
    ).graph
    calls = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert calls.count("flfast.conv_pool.default") == 1
    assert calls.count("aten.convolution.default") == 1


def test_other_types_and_layouts_stay_with_torch(monkeypatch):
    assert joined(step, dtype=torch.float64) == []
    assert joined(step, layout=torch.contiguous_format) == []
    monkeypatch.setenv(VARIABLE, "convolutions")
    assert joined(step) == []


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(
            partial(cnn, channels=[4, 8], hidden=16, padding=0),
            (1, 16, 16),
            marks=pytest.mark.slow,
        ),
        (lenet, (3, 16, 16)),
    ],
    ids=["grey", "colour"],
)
def test_rounds_are_those_of_the_eager_engine(make_data, make_federation, model, shape):
    net: nn.Module = model(input_shape=shape, num_classes=10)
    use_channels_last(net)
    inputs = channels_last(torch.randn(19, *shape))

    def make():
        data = make_data([9, 10], features=shape, inputs=inputs)
        return make_federation(data, deepcopy(net), rounds=2, batching=Batching(4), lr=0.05)

    assert_engines_agree(make, tol=1e-5)
