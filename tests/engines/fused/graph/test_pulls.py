"""Proximal terms take no pass of their own, and no number changes."""

import pytest
import torch
from torch.nn import functional as F
from tracing import trace

from flfast.engines.fused.graph.executor import executor
from flfast.engines.fused.graph.rewrite import rewrite
from flfast.engines.fused.graph.trace import operators

own = torch.ops.flfast
aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def run_both():
    rng = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(7, 5, generator=rng) for name in ("w", "anchor", "control", "other")
    } | {"lr": torch.tensor(0.1, dtype=torch.float64), "loss": torch.zeros(())}

    def run(fn):
        """Operators of the graph with kernels, after comparing what both graphs leave."""
        rows = torch.randn(3, 10, 5, generator=rng)
        trees = [state, {"x": rows[0]}]
        plain, lowered = operators(fn, trees), trace(fn, trees)
        rewrite(plain.graph)
        found = []
        for module in (plain, lowered):
            leaves = [leaf.clone() for leaf in state.values()]
            executor(module, sliced=1)(leaves, [rows], num=3, width=1)
            found.append(leaves)
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
        return [n for n in lowered.graph.nodes if n.op == "call_function"]

    return run


def gradient(state, batch, penalty):
    with torch.enable_grad():
        w = state["w"].detach().requires_grad_()
        loss = F.linear(batch["x"], w).square().mean() + penalty(w)
        (grad,) = torch.autograd.grad(loss, w)
    state["loss"].add_(loss.detach())
    return grad


def nothing(_):
    return 0.0


def of_weights(nodes, size=35):
    """Elementwise operators that pass over tensors of the weights' size."""
    passes = (aten.sub.Tensor, aten.mul.Tensor, aten.pow.Tensor_Scalar, aten.sub_.Tensor)
    values = (node.meta.get("val") for node in nodes if node.target in passes)
    return [value for value in values if value is not None and value.numel() == size]


def test_a_proximal_term(run_both):
    def step(state, batch):
        grad = gradient(state, batch, lambda w: 0.3 / 2 * (w - state["anchor"]).square().sum())
        state["w"].sub_(grad * state["lr"])

    nodes = run_both(step)
    assert of_weights(nodes) == []
    (update,) = (node for node in nodes if node.target == own.weight_update_.default)
    assert "anchor" in update.kwargs
    assert own.squared_distance.default in [node.target for node in nodes]


def test_a_control_variate_stays_a_pass_of_its_own(run_both):
    def step(state, batch):
        grad = gradient(state, batch, nothing)
        state["w"].sub_((grad + (state["control"] - state["other"])) * state["lr"])

    nodes = run_both(step)
    (update,) = (node for node in nodes if node.target == own.weight_update_.default)
    assert not update.kwargs


@pytest.mark.parametrize("late", ["anchor", "w"])
def test_what_changes_before_the_update_is_not_read_late(run_both, late):
    def step(state, batch):
        away = state["w"] - state["anchor"]
        grad = gradient(state, batch, nothing)
        state[late].add_(1.0)
        state["w"].sub_(away * state["lr"])
        state["w"].sub_(grad)

    run_both(step)


def test_a_distance_is_that_before_the_update(run_both):
    def step(state, batch):
        away = state["w"] - state["anchor"]
        state["w"].sub_(gradient(state, batch, nothing))
        state["loss"].add_(away.square().sum())

    nodes = run_both(step)
    assert own.squared_distance.default not in [node.target for node in nodes]


def test_a_term_of_another_type_is_added_as_before(run_both):
    def step(state, batch):
        grad = gradient(state, batch, nothing)
        state["w"].sub_((state["control"].double() * state["lr"]).float())
        state["w"].sub_(grad)

    run_both(step)
