"""Local steps are the same without any of the passes, and a wrong name is refused."""

import pytest
import torch
from engine_runs import assert_engines_agree, mlp
from tracing import trace

from flfast.algorithms.fedprox import fedprox
from flfast.engines.fused.graph.skipped_passes import PASSES, VARIABLE, skipped
from flfast.state.plan import Batching


def used(step, state, rows):
    module = trace(step, [state, rows])
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def step(state, batch):
    with torch.enable_grad():
        w = state["w"].detach().requires_grad_()
        hidden = torch.nn.functional.max_pool2d((batch["x"] @ w.t())[None].relu(), 2)
        (grad,) = torch.autograd.grad(hidden.square().sum(), w)
    state["w"].sub_(grad)


@pytest.mark.parametrize("name", [*PASSES, "all"])
def test_a_pass_is_left_out_by_its_name(name, monkeypatch):
    trees = {"w": torch.ones(4, 5)}, {"x": torch.ones(6, 5)}
    whole = used(step, *trees)
    monkeypatch.setenv(VARIABLE, name)
    assert skipped() == (frozenset(PASSES) if name == "all" else {name})
    changes = {"rewriting", "pooling", "kernels", "all"}
    assert (used(step, *trees) != whole) is (name in changes)


@pytest.mark.parametrize("given", ["speed", "pooling,,fast", "none"])
def test_another_name_is_refused(given, monkeypatch):
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(ValueError, match=f"{VARIABLE}=.*; allowed: rewriting, pooling"):
        skipped()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PASSES, "all"])
def test_rounds_are_those_of_the_eager_engine_without_it(
    name, make_data, make_federation, monkeypatch
):
    monkeypatch.setenv(VARIABLE, name)

    def make():
        return make_federation(
            make_data([9, 14, 3, 26]),
            mlp(),
            algorithm=fedprox(mu=0.5, weighting="samples"),
            batching=Batching(4),
            rounds=2,
        )

    assert_engines_agree(make, tol=1e-5)


def test_a_run_with_another_name_ends_before_training(flfast_run, monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "speed")
    with pytest.raises(SystemExit):
        flfast_run("rounds=1")
    assert f"{VARIABLE}=speed; allowed: rewriting, pooling" in capsys.readouterr().err
