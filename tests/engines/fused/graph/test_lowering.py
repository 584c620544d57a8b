"""Steps with our kernels arrive where steps without them do."""

import pytest
import torch
from torch.nn import functional as F
from tracing import trace

from flfast.engines.fused.graph.executor import executor
from flfast.engines.fused.graph.rewrite import rewrite
from flfast.engines.fused.graph.trace import operators

own = torch.ops.flfast
pytestmark = pytest.mark.usefixtures("kernels")


def net(state, batch, *, momentum=0.0, relu=F.relu):
    """A local step of two layers."""
    names = ("w1", "b1", "w2")
    with torch.enable_grad():
        w1, b1, w2 = (state[name].detach().requires_grad_() for name in names)
        hidden = relu(F.linear(batch["x"], w1, b1))
        loss = F.linear(hidden, w2).square().mean()
        grads = torch.autograd.grad(loss, (w1, b1, w2))
    for name, grad in zip(names, grads, strict=True):
        if momentum:
            state[f"m_{name}"].mul_(momentum).add_(grad)
            state[name].sub_(state[f"m_{name}"])
        else:
            state[name].sub_(grad)


def state_of(dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    shapes = {"w1": (7, 5), "b1": (7,), "w2": (3, 7)}
    state = {n: torch.randn(s, generator=rng, dtype=dtype) for n, s in shapes.items()}
    return state | {f"m_{name}": torch.zeros_like(leaf) for name, leaf in state.items()}


def run_both(fn, state, rows, *, size):
    """Kernels in the graph, after comparing the states that graphs with and without leave."""
    rows = rows.view(-1, size, *rows.shape[1:])
    trees = [state, {"x": rows[0]}]
    module, lowered = operators(fn, trees), trace(fn, trees)
    rewrite(module.graph)
    found = []
    for each in (module, lowered):
        leaves = [leaf.clone() for leaf in state.values()]
        executor(each, sliced=1)(leaves, [rows], num=len(rows), width=1)
        found.append(leaves)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    calls = [n.target for n in lowered.graph.nodes if n.op == "call_function"]
    return [call for call in calls if str(call).startswith("flfast.")]


def test_a_net_of_two_layers():
    used = run_both(net, state_of(), torch.randn(30, 5) / 5, size=10)
    assert sorted(map(str, used)) == [
        "flfast.bias_update_.default",
        "flfast.input_gradient.default",
        "flfast.linear.default",
        "flfast.linear.default",
        "flfast.weight_update_.default",
        "flfast.weight_update_.default",
    ]


def test_momentum_takes_the_gradient_as_a_product():
    def step(state, batch):
        net(state, batch, momentum=0.5)

    used = run_both(step, state_of(), torch.randn(30, 5) / 5, size=10)
    assert {own.weight_update_.default, own.bias_update_.default} <= set(used)


def test_another_nonlinearity_keeps_its_own_gradient():
    def step(state, batch):
        net(state, batch, relu=torch.tanh)

    assert own.input_gradient.default in run_both(step, state_of(), torch.randn(8, 5) / 5, size=4)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 10), (torch.float32, 80)])
def test_other_types_and_large_batches_are_the_librarys(dtype, size):
    rows = torch.randn(80, 5, dtype=dtype) / 5
    assert run_both(net, state_of(dtype), rows, size=size) == []


def test_a_stack_of_clients():
    def step(state, batch):
        x = batch["x"].view(2, 3, 5)
        y = torch.bmm(x, state["w"].transpose(1, 2))
        dx = torch.bmm(y, state["w"])
        state["out"].add_(dx.sum())
        state["w"].sub_(torch.bmm(y.transpose(1, 2), x))

    rng = torch.Generator().manual_seed(0)
    state = {"w": torch.randn(2, 4, 5, generator=rng) / 9, "out": torch.zeros(())}
    used = run_both(step, state, torch.randn(12, 5, generator=rng), size=6)
    assert len(used) == 3


def classify(state, batch):
    """A local step of a linear model; the last column of a row is its class."""
    x, targets = batch["x"][:, :-1], batch["x"][:, -1].long()
    with torch.enable_grad():
        w = state["w"].detach().requires_grad_()
        losses = F.cross_entropy(F.linear(x, w), targets, reduction="none")
        (grad,) = torch.autograd.grad((losses * losses.detach()).sum(), w)
    state["loss"].add_(losses.detach().sum())
    state["w"].sub_(grad)


def labelled(num, num_classes):
    targets = torch.arange(num) % num_classes
    return torch.cat([torch.randn(num, 5) / 5, targets[:, None].float()], dim=1)


def test_cross_entropy_and_its_gradient():
    state = {"w": torch.randn(3, 5), "loss": torch.zeros(())}
    used = run_both(classify, state, labelled(30, 3), size=10)
    assert {own.cross_entropy.default, own.cross_entropy_gradient.default} <= set(used)


def test_scores_that_something_else_reads_are_the_librarys():
    def step(state, batch):
        with torch.enable_grad():
            w = state["w"].detach().requires_grad_()
            scores = F.log_softmax(F.linear(batch["x"][:, :-1], w), dim=1)
            losses = F.nll_loss(scores, batch["x"][:, -1].long(), reduction="none")
            (grad,) = torch.autograd.grad(losses.mean() + scores.square().mean(), w)
        state["w"].sub_(grad)

    used = run_both(step, {"w": torch.randn(3, 5)}, labelled(30, 3), size=10)
    assert own.cross_entropy.default not in used


def test_many_logits_are_the_librarys():
    state = {"w": torch.randn(200, 5), "loss": torch.zeros(())}
    assert own.cross_entropy.default not in run_both(classify, state, labelled(20, 200), size=10)
