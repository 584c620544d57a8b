"""Joined elementwise operators compute what one after another computes, to the last bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from flfast.engines.fused.graph import pointwise
from flfast.engines.fused.graph.executor import EXECUTORS
from flfast.engines.fused.graph.instructions import instructions
from flfast.engines.fused.graph.trace import operators, rewritten

pytestmark = pytest.mark.usefixtures("kernels")

SHAPE = 70, 33
"""More rows than `input_gradient` takes, so that a gradient of this shape is a product here."""

OPERATORS = ("add", "sub", "mul", "div", "abs", "add_", "sub_", "mul_", "div_", "copy_", "read")


def run_both(fn, state, rows, monkeypatch, *, name="tape"):
    """Kernels of the joined step, whose states are those of the step without the pass."""
    found, kernels = [], []
    for most in (1, pointwise.MOST_OPERATORS):  # without joining, products are those of the kernel
        monkeypatch.setattr(pointwise, "MOST_OPERATORS", most)
        module = rewritten(operators(fn, [state, {n: row[0] for n, row in rows.items()}]))
        leaves = [leaf.clone() for leaf in state.values()]
        run = EXECUTORS[name](instructions(module, sliced=len(rows)))
        run(leaves, list(rows.values()), num=len(next(iter(rows.values()))), width=1)
        found.append(leaves)
        kernels.append([str(n.target) for n in module.graph.nodes if n.op == "call_function"])
    for leaf, expected in zip(*reversed(found), strict=True):
        torch.testing.assert_close(leaf, expected, rtol=0, atol=0, equal_nan=True)
    return [target for target in kernels[1] if target.startswith("flfast.pointwise")]


def drawn(seed=0, **shapes):
    rng = torch.Generator().manual_seed(seed)
    return {n: torch.randn(shape, generator=rng) for n, shape in shapes.items()}


operands = st.integers(0, 30)
programs = st.lists(st.tuples(st.sampled_from(OPERATORS), operands, operands), max_size=40)


def apply(state, batch, program):
    """Run a program whose operands are earlier values, weights, numbers and scalars."""
    with torch.enable_grad():
        w = state["w"].detach().requires_grad_()
        (grad,) = torch.autograd.grad(F.linear(batch["x"], w).square().sum(), w)
    names = [name for name, leaf in state.items() if leaf.shape == SHAPE]
    values = [*(state[name] for name in names), grad]
    for word, left, right in program:
        first, numbers = values[left % len(values)], [*values, 0.3, state["scalar"]]
        second, target = numbers[right % len(numbers)], state[names[left % len(names)]]
        if word == "read":  # by another operator, that writes what later ones read
            state["scalar"].copy_(torch.linalg.vector_norm(first) / 9)
        elif word.endswith("_"):
            source = second if isinstance(second, torch.Tensor) else torch.tensor(second)
            getattr(target, word)(source)
        else:
            values.append(first.abs() if word == "abs" else getattr(torch, word)(first, second))
    state["out"].copy_(torch.stack([value.sum() for value in values]).sum())


@settings(deadline=None, max_examples=60)
@given(program=programs)
def test_any_program(program):
    state = drawn(w=SHAPE, v=SHAPE, m=SHAPE, scalar=(), out=())
    with pytest.MonkeyPatch.context() as patch:
        run_both(lambda s, b: apply(s, b, program), state, drawn(1, x=(3, 6, SHAPE[1])), patch)


def sharpness_aware(state, batch):
    """A step of FedSMOO's kind: two gradients, a dual variable, a proximal term."""

    def gradient(point):
        with torch.enable_grad():
            w = point.detach().requires_grad_()
            return torch.autograd.grad(F.linear(batch["x"], w).square().mean(), w)[0]

    v = gradient(state["w"]) - state["dual"] - state["s"]
    ascent = 0.1 / torch.linalg.vector_norm(v) * v
    uphill = gradient(state["w"] + ascent)
    state["dual"].copy_(state["dual"] + (ascent - state["s"]))
    state["last"].copy_(ascent)
    state["w"].sub_((uphill - state["g"] + 0.1 * (state["w"] - state["start"])) * state["lr"])


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_step_of_two_gradients_takes_three_passes(name, monkeypatch):
    names = ("w", "dual", "s", "last", "g", "start")
    state = drawn(**dict.fromkeys(names, SHAPE)) | {"lr": torch.tensor(0.05).double()}
    rows = drawn(1, x=(4, 10, SHAPE[1]))
    assert len(run_both(sharpness_aware, state, rows, monkeypatch, name=name)) == 3


def test_a_stack_of_clients(monkeypatch):
    def step(state, batch):
        grad = torch.bmm(batch["g"].transpose(1, 2), batch["x"])
        state["m"].mul_(0.9).add_(grad)
        state["w"].sub_(grad + state["m"] * 0.9)

    state = drawn(w=(3, *SHAPE), m=(3, *SHAPE))
    rows = drawn(1, x=(2, 3, 5, SHAPE[1]), g=(2, 3, 5, SHAPE[0]))
    assert len(run_both(step, state, rows, monkeypatch)) == 1


def test_other_layouts_types_and_shifted_views_are_the_librarys(monkeypatch):
    def step(state, batch):
        state["w"].sub_((state["t"].t() + state["w"]) * batch["x"])
        state["d"].add_(state["d"] * 2.0)
        state["v"][1:].add_(state["v"][:-1] * 2.0)

    state = drawn(w=(4, 5), t=(5, 4), d=(3,), v=(9,))
    state["d"] = state["d"].double()
    assert run_both(step, state, drawn(1, x=(2, 4, 5)), monkeypatch) == []


def test_a_read_between_two_writes_keeps_its_place(monkeypatch):
    def step(state, batch):
        state["w"].mul_(0.5)
        state["out"].add_(state["w"].sum())
        state["w"].add_(batch["x"])

    assert run_both(step, drawn(w=(4, 5), out=()), drawn(1, x=(3, 4, 5)), monkeypatch) == []
