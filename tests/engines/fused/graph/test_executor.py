"""Executors: which one is taken, and one program for stacks of any width."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from flfast.engines.fused.graph import executor as executors
from flfast.engines.fused.graph.executor import VARIABLE, choice, executor, wanted
from flfast.engines.fused.graph.instructions import instructions
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


def steps(*fns):
    return [operators(fn, [{"p": torch.zeros(())}, {"x": torch.ones(4, 3)}]) for fn in fns]


@pytest.mark.parametrize(
    ("two", "three"),
    [
        (lambda x: x.view(2, 6), lambda x: x.view(4, 3)),
        (lambda x: x * 0.5, lambda x: x * 0.25),
        (lambda x: x + 1, lambda x: x + 1 + 1),
        (torch.exp, torch.log),
        (lambda x: x.sum(0, keepdim=True), lambda x: x.sum(1, keepdim=True)),
        (lambda x: x + torch.tensor([2.0, 1, 1]), lambda x: x + torch.tensor([3.0, 1, 1])),
    ],
    ids=["no multiple", "float", "more", "operator", "from zero", "constant"],
)
def test_what_is_no_multiple_of_the_width_is_refused(two, three):
    def stepped(fn):
        return lambda state, batch: state["p"].add_(fn(batch["x"]).sum())

    with pytest.raises(NotImplementedError, match=r"client|operators depend"):
        instructions(*steps(stepped(two), stepped(three)), sliced=1)


class Watching(TorchDispatchMode):
    """Counts the tensors that operators made and somebody still holds."""

    def __init__(self):
        super().__init__()
        self.made, self.most = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if func is torch.ops.aten.exp.default:
            self.most = max(self.most, sum(not own.expired() for own in self.made))
            self.made.append(StorageWeakRef(result.untyped_storage()))
        return result


@pytest.mark.usefixtures("each_executor")
def test_values_are_freed_after_their_last_use():
    def deep(state, batch):
        value = batch["x"]
        for _ in range(8):
            value = value.exp() * 0.1
        state["p"].add_(value.sum())

    run = executor(*steps(deep), sliced=1)
    with Watching() as watching:
        run([torch.zeros(())], [torch.ones(2, 4, 3)], num=2, width=1)
    assert len(watching.made) == 16
    assert watching.most <= 1


@pytest.mark.usefixtures("each_executor")
def test_an_operator_that_fails_says_so():
    def product(state, batch):
        state["p"].add_((batch["x"] @ torch.ones(3, 3)).sum())

    run = executor(*steps(product), sliced=1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run([torch.zeros(())], [torch.ones(2, 4, 5)], num=2, width=1)


def test_an_operator_that_vmap_would_repeat_is_refused():
    def divides(state, batch):
        state["w"].addcdiv_(batch["x"][0], batch["x"][1])

    singles = [{"w": torch.zeros(3)}, {"x": torch.rand(4, 3)}]
    module = operators(divides, singles)
    flat = [leaf for own in singles for leaf in own.values()]
    with pytest.raises(RuntimeError, match="vmap"):
        vmap_graph(module, flat, [False, False], 2)


@pytest.mark.parametrize(
    ("reason", "name", "why"),
    [
        (None, "tape", "our C++ is loaded"),
        ("no C++ compiler", "straight-line", "our C++ is missing: no C++ compiler"),
    ],
)
def test_without_a_compiler_there_is_no_tape(monkeypatch, reason, name, why):
    monkeypatch.setattr(executors, "missing", lambda: reason)
    choice.cache_clear()
    assert choice("") == (name, why)
    choice.cache_clear()


def test_the_environment_decides(monkeypatch):
    monkeypatch.setenv(VARIABLE, "straight-line")
    assert choice(wanted()) == ("straight-line", "FLFAST_EXECUTOR asks for it")
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ValueError, match="FLFAST_EXECUTOR=fast; allowed: tape, straight-line"):
        wanted()
