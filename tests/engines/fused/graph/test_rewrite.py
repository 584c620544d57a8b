"""Tracing, rewriting and executors: the same numbers as the function that was traced."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import others_slow
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from tracing import trace

from flfast.engines.fused.graph.dataflow import invariants
from flfast.engines.fused.graph.executor import executor
from flfast.engines.fused.graph.trace import constants, placeholders
from flfast.engines.fused.graph.update_rules import local_optimizer

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("each_executor")


def drawn(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def copied(state):
    return {name: value.clone() for name, value in state.items()}


def run_both(fn, state, rows, *, size=1):
    """State after all rows, stepped through in Python and by a traced program."""
    num = len(rows) // size
    expected, found = copied(state), copied(state)
    for i in range(num):
        fn(expected, {"x": rows[i * size : (i + 1) * size].clone()})
    module = trace(fn, [state, {"x": rows[:size]}])
    executor(module, sliced=1)(
        list(found.values()), [rows.clone().unflatten(0, (num, size))], num=num, width=1
    )
    return expected, found, module


def assert_same(fn, state, rows, *, size=1):
    expected, found, module = run_both(fn, state, rows, size=size)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    return module


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


# --- random programs ------------------------------------------------------------------------

SQUARE = 3
SGD = [{"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}, {}]


def halves(left, right):
    return torch.cat([left.split([1, 2])[0], right.split([1, 2])[1]])


BINARY = {
    "mm": lambda a, b: torch.tanh(a @ b),
    "product": torch.mm,
    "add": lambda a, b: a + b,
    "halves": halves,
    "sub_": lambda a, b: a.sub_(b),
    "add_": lambda a, b: a.add_(b),
    "sub_product": lambda a, b: a.sub_(torch.mm(a.t(), b)),
    "copy_": lambda a, b: a.copy_(torch.tanh(b)),
    "zeros": lambda a, b: torch.zeros_like(a).add_(b),
    "new": lambda a, b: torch.zeros(SQUARE, SQUARE, dtype=a.dtype).add_(b).mul_(0.5),
}
UNARY = {
    "t": lambda a: a.t(),
    "view": lambda a: a.view_as(a),
    "detach": lambda a: a.detach(),
    "mul_": lambda a: a.mul_(0.9),
    "tanh_": lambda a: a.tanh_(),
    "first": lambda a: _changed_in_part(a),
    "constant": lambda a: a + torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
}


def _changed_in_part(a):
    first, _ = a.split([1, 2])
    first.mul_(0.5)
    return a


operations = st.lists(
    st.tuples(st.sampled_from([*BINARY, *UNARY]), st.integers(0, 20), st.integers(0, 20)),
    min_size=1,
    max_size=10,
)


def program(operations):
    """A step from drawn operations over state, a constant input and a row."""

    def step(state, batch):
        values = [state["p"], state["q"], state["fixed"], batch["x"][0]]
        for name, left, right in operations:
            a, b = values[left % len(values)], values[right % len(values)]
            # An operator may not read what it is just writing.
            b = b.clone() if name in BINARY and name.endswith("_") else b
            values.append(BINARY[name](a, b) if name in BINARY else UNARY[name](a))
        state["p"].copy_(torch.tanh(state["p"] + values[-1]))
        state["q"].mul_(0.5).add_(sum(values).clamp(-1, 1))

    return step


@settings(max_examples=12)
@given(operations)
def test_a_traced_step_is_the_step(operations):
    state = {name: drawn(SQUARE, SQUARE, seed=i) for i, name in enumerate(("p", "q", "fixed"))}
    assert_same(program(operations), state, 0.5 * drawn(3, SQUARE, SQUARE, seed=9))


# --- what rewriting is for ------------------------------------------------------------------


def training(model, optimizer):
    def step(state, batch):
        params = {
            name: state[name].detach().requires_grad_() for name, _ in model.named_parameters()
        }
        with torch.enable_grad():
            logits = functional_call(model, params, (batch["x"],))
            loss = F.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[1])
            grads = torch.autograd.grad(loss * 0.1, list(params.values()))
        kept = {
            slot: {name: state[f"{slot}.{name}"] for name in params} for slot in optimizer.slots
        }
        own = {name: state[name] for name in params}
        optimizer.update(own, dict(zip(params, grads, strict=True)), kept, torch.tensor(0.1))

    return step


def trained(model, *, rows, **options):
    model = model.double()
    optimizer = local_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, **options))
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    for slot in optimizer.slots:
        state.update({f"{slot}.{n}": torch.zeros_like(p) for n, p in model.named_parameters()})
    return assert_same(training(model, optimizer), state, rows, size=4)


def mlp():
    torch.manual_seed(0)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def test_sgd_on_linear_layers_updates_by_products_alone():
    found = targets(trained(mlp(), rows=drawn(12, 5)))
    assert found.count(aten.addmm_.default) == 2
    # What is left passes the gradient back through the second layer.
    assert found.count(aten.mm.default) == 1
    assert aten.detach.default not in found


def test_momentum_goes_into_the_product():
    module = trained(mlp(), rows=drawn(12, 5), momentum=0.9)
    fused = [n for n in module.graph.nodes if n.target is aten.addmm_.default]
    assert [node.kwargs["beta"] for node in fused] == [0.9, 0.9]
    assert targets(module).count(aten.mul_.Tensor) == 2  # of the biases


@pytest.mark.parametrize("kind", ["conv", "norm", "embedding"])
@pytest.mark.parametrize("options", others_slow(SGD, SGD[:1]), ids=str)
def test_small_nets_train_as_they_do_in_python(kind, options):
    torch.manual_seed(0)  # noqa: TID251 - a test's own model
    model, rows = {
        "conv": (
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)),
            drawn(12, 2, 6, 6),
        ),
        "norm": (nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 4), nn.GELU()), drawn(12, 5)),
        "embedding": (
            nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 3)),
            torch.arange(24).reshape(12, 2) % 6,
        ),
    }[kind]
    trained(model, rows=rows, **options)


# --- what must not be rewritten -------------------------------------------------------------


def late_factor(change):
    """P's update reads a product of what `change` altered after the product was made."""

    def step(state, batch):
        product = state["a"].t() @ batch["x"]
        change(state)
        state["p"].sub_(product)

    return step


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["a"].mul_(0.5),
        lambda state: state["a"].t().mul_(0.5),
        lambda state: state["a"].view(-1).mul_(0.5),
        lambda state: state["a"].split([1, 2])[0].mul_(0.5),
        lambda state: state["a"].unbind()[1].add_(1.0),
    ],
    ids=["itself", "transposed", "flat", "split", "unbind"],
)
def test_a_factor_that_changed_since_is_not_read_late(change):
    state = {"a": drawn(3, 3), "p": drawn(3, 3, seed=1)}
    assert_same(late_factor(change), state, drawn(9, 3, seed=2), size=3)


@pytest.mark.parametrize("scale", [0.5, "rate"])
def test_a_sum_with_a_product_becomes_two_updates(scale):
    """SCAFFOLD's correction, a proximal term."""

    def step(state, batch):
        factor = state["rate"] if scale == "rate" else scale
        product = batch["x"].t() @ (batch["x"] + state["p"])
        state["p"].sub_((product + (state["c"] - state["d"])) * factor)

    state = {"p": drawn(3, 3), "c": drawn(3, 3, seed=1), "d": drawn(3, 3, seed=3)}
    state["rate"] = torch.tensor(0.1, dtype=torch.float64)
    module = assert_same(step, state, 0.1 * drawn(9, 3, seed=2), size=3)
    found = targets(module)
    assert found.count(aten.addmm_.default) == 1
    assert aten.mm.default not in found
    once = invariants(module.graph, set(placeholders(module.graph)[-1:]))
    assert {aten.sub.Tensor, aten.mul.Tensor} & {node.target for node in once}


@pytest.mark.parametrize(
    "own", [lambda p: p, torch.t, lambda p: 0.1 * p], ids=["itself", "transposed", "a tenth"]
)
def test_a_sum_of_a_product_and_what_is_updated(own):
    def step(state, batch):
        state["p"].sub_(0.5 * (batch["x"] @ batch["x"] + own(state["p"])))
        state["p"].add_(batch["x"] @ state["p"] + own(state["p"]))

    assert_same(step, {"p": 0.1 * drawn(3, 3)}, 0.1 * drawn(9, 3, seed=2), size=3)


def test_a_term_that_changed_since_is_not_read_late():
    def step(state, batch):
        total = batch["x"] @ batch["x"] + state["c"]
        state["c"].mul_(0.5)
        state["p"].sub_(total)

    state = {"p": drawn(3, 3), "c": drawn(3, 3, seed=1)}
    assert_same(step, state, drawn(9, 3, seed=2), size=3)


def test_a_scaled_value_is_that_before_a_change():
    def step(state, batch):
        tenth = state["p"] * 0.1
        state["p"].add_(batch["x"])
        state["q"].sub_(tenth * state["rate"])
        state["q"].sub_((batch["x"] * 0.5) * state["rate"])

    state = {"p": drawn(3, 3), "q": drawn(3, 3, seed=1)}
    state["rate"] = torch.tensor(0.1, dtype=torch.float64)
    module = assert_same(step, state, drawn(9, 3, seed=2), size=3)
    scalings = [n for n in module.graph.nodes if n.target is aten.mul.Tensor]
    assert len(scalings) == 4, "two of q's, one of them of a number alone"


def test_an_update_by_a_product_of_itself():
    def step(state, batch):
        state["p"].sub_(torch.tanh(state["p"] @ batch["x"]))
        state["p"].sub_(0.1 * state["p"])
        state["p"].sub_(state["p"] @ batch["x"])

    assert_same(step, {"p": 0.1 * drawn(3, 3)}, 0.1 * drawn(9, 3, seed=2), size=3)


def test_a_decay_that_is_read_in_between_stays():
    def step(state, batch):
        decayed = state["buffer"].mul_(0.9)
        state["seen"].copy_(decayed * 2)
        decayed.add_(batch["x"] @ batch["x"])

    state = {"buffer": drawn(3, 3), "seen": torch.zeros(3, 3, dtype=torch.float64)}
    assert_same(step, state, drawn(9, 3, seed=2), size=3)


def test_an_update_that_broadcasts_a_product():
    def step(state, batch):
        state["p"].sub_(batch["x"] @ batch["x"])

    assert_same(step, {"p": drawn(2, 3, 3)}, drawn(9, 3, seed=2), size=3)


# --- invariants -----------------------------------------------------------------------------


def hoisted(fn, state, row):
    module = trace(fn, [state, {"x": row}])
    row_nodes = set(placeholders(module.graph)[-1:])
    return [node.target for node in invariants(module.graph, row_nodes)]


def test_what_only_reads_fixed_inputs_is_computed_once():
    def step(state, batch):
        state["sum"].add_(batch["x"] @ (state["fixed"] * 2).t())

    state = {"fixed": drawn(3, 3), "sum": torch.zeros(1, 3, dtype=torch.float64)}
    found = hoisted(step, state, drawn(1, 3))
    assert aten.mul.Tensor in found
    assert aten.mm.default not in found
    assert_same(step, state, drawn(4, 3))


def test_random_operators_are_repeated():
    def step(state, batch):
        state["last"].copy_(torch.rand(3, dtype=torch.float64))
        state["sum"].add_(F.dropout(state["fixed"], 0.5) + batch["x"].sum())

    zeros = torch.zeros(3, dtype=torch.float64)
    state = {"fixed": drawn(3).abs() + 1, "last": zeros, "sum": zeros.clone()}
    module = trace(step, [state, {"x": drawn(1)}])
    script = executor(module, sliced=1)
    draws, masks = [], []
    with torch.random.fork_rng():
        found = copied(state)
        script(list(found.values()), [torch.zeros(40, 1, dtype=torch.float64)], num=40, width=1)
        for _ in range(20):
            own = copied(state)
            script(list(own.values()), [torch.zeros(2, 1, dtype=torch.float64)], num=2, width=1)
            draws.append(tuple(own["last"].tolist()))
            masks.append(tuple((own["sum"] / own["fixed"]).round().tolist()))
    assert len(set(draws)) == 20
    # Of two masks that were drawn anew some keep a value once.
    assert any(2.0 in mask for mask in masks)
    assert (found["sum"] / state["fixed"]).max() < 79, "one mask for all steps"


@pytest.mark.parametrize(
    "make",
    [
        lambda state: torch.zeros(3, dtype=torch.float64),
        lambda state: torch.zeros_like(state["fixed"]),
        lambda state: state["fixed"] * 1,
        lambda state: state["fixed"].clone().view(3, 1).view(3),
        lambda state: torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
    ],
    ids=["zeros", "zeros_like", "product", "view", "constant"],
)
def test_what_a_step_makes_and_changes_is_made_anew(make):
    def step(state, batch):
        own = make(state)
        own.view(3).add_(batch["x"][0])
        state["sum"].add_(own)

    state = {"fixed": drawn(3), "sum": torch.zeros(3, dtype=torch.float64)}
    assert_same(step, state, drawn(5, 3, seed=3))


def test_a_part_that_changes_changes_the_whole():
    def step(state, batch):
        first, second = state["counted"].split([1, 2])
        first.add_(batch["x"].sum())
        state["sum"].add_(state["counted"] * 2)
        second.unbind()[0].mul_(0.5)

    zeros = torch.zeros(3, dtype=torch.float64)
    assert_same(step, {"counted": drawn(3), "sum": zeros}, drawn(5, 3, seed=3))


def test_one_of_several_results_that_a_step_changes_is_made_anew():
    def step(state, batch):
        largest, _ = state["fixed"].max(0)
        largest.add_(batch["x"].sum(0))
        state["sum"].add_(largest)

    state = {"fixed": drawn(3, 3), "sum": torch.zeros(3, dtype=torch.float64)}
    assert_same(step, state, drawn(5, 3, seed=3))


def test_views_of_what_changes_are_made_once_and_read_anew():
    def step(state, batch):
        state["p"].t().sub_(0.1 * batch["x"])
        state["sum"].add_(state["p"].t().sum())

    state = {"p": drawn(3, 3), "sum": torch.zeros((), dtype=torch.float64)}
    assert aten.t.default in hoisted(step, state, drawn(1, 3))
    assert_same(step, state, drawn(5, 3, seed=3))


# --- tracing --------------------------------------------------------------------------------


def test_tracing_changes_no_value():
    def step(state, batch):
        state["p"].mul_(0.0)
        batch["x"].zero_()

    state, rows = {"p": drawn(3)}, drawn(2, 3, seed=1)
    trace(step, [state, {"x": rows}])
    assert torch.equal(state["p"], drawn(3))
    assert torch.equal(rows, drawn(2, 3, seed=1))


def test_constants_of_the_function_are_inputs_of_their_own():
    table = drawn(3, 3, seed=5)

    def step(state, batch):
        state["p"].add_(batch["x"] @ table + torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64))

    module = assert_same(step, {"p": drawn(1, 3)}, drawn(4, 3, seed=3))
    assert any(torch.equal(value, table) for value in constants(module).values())


def test_infinities_and_nested_lists_have_a_written_form():
    def step(state, batch):
        masked = torch.full((3,), float("-inf"), dtype=torch.float64).maximum(batch["x"][0])
        state["p"].add_(F.pad(masked, (0, 1)).roll([1], [0])[:3])

    assert_same(step, {"p": drawn(3)}, drawn(4, 3, seed=3))


def test_a_decision_on_values_cannot_be_traced():
    def step(state, batch):
        if batch["x"].sum() > 0:
            state["p"].add_(1)

    with pytest.raises(Exception, match=r"(?i)data-dependent|bool|guard"):
        trace(step, [{"p": drawn(3)}, {"x": drawn(2, 3)}])
