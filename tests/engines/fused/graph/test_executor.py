"""Executors: which one is taken, and one source for stacks of any width."""

import warnings

import pytest
import torch

from flfast.engines.fused.graph.executor import VARIABLE, choice, executor, wanted
from flfast.engines.fused.graph.loop_source import for_any_width
from flfast.engines.fused.graph.trace import operators, rewritten
from flfast.engines.fused.graph.vmapped import vmap_graph


def step(state, context, batch):
    hidden = torch.tanh(batch["x"] @ state["w"].t() + context["b"])
    state["w"].sub_(hidden.t() @ batch["x"])
    state["sum"].addcmul_(hidden.sum(), context["b"].sum())


def tree(width=None):
    rng = torch.Generator().manual_seed(0)
    lead = () if width is None else (width,)

    def drawn(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    return {"w": drawn(*lead, 2, 3), "sum": drawn(*lead)}, {"b": drawn(2)}


@pytest.mark.usefixtures("each_executor")
@pytest.mark.parametrize("width", [2, 5, 7])
def test_a_stack_of_any_width_takes_the_steps_of_its_clients(width):
    state, context = tree(width)
    rows = torch.randn(4, width, 6, 3, dtype=torch.float64)
    singles = [{name: leaf[0] for name, leaf in state.items()}, context, {"x": rows[0, 0]}]
    module = operators(step, singles)
    flat = [leaf for own in singles for leaf in own.values()]
    pair = [rewritten(vmap_graph(module, flat, [False, False, True, False], n)) for n in (2, 3)]
    assert torch.ops.aten.baddbmm_.default in {node.target for node in pair[0].graph.nodes}
    script = executor(*pair, sliced=1)
    found = {name: leaf.clone() for name, leaf in state.items()}
    script([*found.values(), context["b"]], [rows], num=4, width=width)
    for client in range(width):
        own = {name: leaf[client].clone() for name, leaf in state.items()}
        for row in rows[:, client]:
            step(own, context, {"x": row})
        torch.testing.assert_close({n: leaf[client] for n, leaf in found.items()}, own)


@pytest.mark.parametrize(
    ("two", "three"),
    [("f(x, 2)", "f(x, 4)"), ("f(x, 0.5)", "f(x, 0.25)"), ("f(x)", "f(x, 3)"), ("f(x)", "g(x)")],
)
def test_what_is_no_multiple_of_the_width_is_refused(two, three):
    with pytest.raises(NotImplementedError):
        for_any_width(two, three)


def test_names_are_no_numbers():
    same = "view_2 = torch.ops.aten.view.default(arg2_1, [10, -1], 1e-05)"
    assert for_any_width(same, same) == same
    assert for_any_width("v_2(x2, [-1, 2, 8])", "v_2(x2, [-1, 3, 12])") == (
        "v_2(x2, [-1, width * 1, width * 4])"
    )


def test_an_operator_that_vmap_would_repeat_is_refused():
    def divides(state, batch):
        state["w"].addcdiv_(batch["x"][0], batch["x"][1])

    singles = [{"w": torch.zeros(3)}, {"x": torch.rand(4, 3)}]
    module = operators(divides, singles)
    flat = [leaf for own in singles for leaf in own.values()]
    with pytest.raises(RuntimeError, match="vmap"):
        vmap_graph(module, flat, [False, False], 2)


@pytest.fixture
def choose(monkeypatch):
    """The choice with another TorchScript."""

    def choose(compilation_unit):
        monkeypatch.setattr(torch.jit, "CompilationUnit", compilation_unit)
        choice.cache_clear()
        return choice("")

    yield choose
    choice.cache_clear()


def test_torchscript_that_works_is_taken_though_it_warns(choose):
    unit = torch.jit.CompilationUnit

    def warns(source):
        warnings.warn("TorchScript is deprecated", DeprecationWarning, stacklevel=2)
        return unit(source)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        name, _ = choose(warns)
    assert name == "torchscript"


def test_torchscript_that_is_gone_is_not_taken(choose):
    def gone(_):
        raise RuntimeError("TorchScript is not supported\nin Python 3.14")

    assert choose(gone) == ("straight-line", "torchscript fails: TorchScript is not supported")


def test_torchscript_that_computes_something_else_is_not_taken(choose):
    unit = torch.jit.CompilationUnit
    found = choose(lambda source: unit(source.replace("alpha=0.1", "alpha=0.2")))
    assert found == ("straight-line", "torchscript fails: other numbers")


def test_the_environment_decides(monkeypatch):
    monkeypatch.setenv(VARIABLE, "straight-line")
    assert choice(wanted()) == ("straight-line", "FLFAST_EXECUTOR asks for it")
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ValueError, match="FLFAST_EXECUTOR=fast; allowed: torchscript, straight"):
        wanted()
