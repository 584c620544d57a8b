import pytest
import torch

from flfast.engines.fused.graph.loss_scale import LossScale, keep_unless, loss_scale, unscaled

CPU = torch.device("cpu")


@pytest.mark.parametrize("start", [65536.0, 3.0, 2.0**126])
def test_the_scale_changes_as_torch_changes_it(start):
    """Also where it would become infinite, and where a finite row is broken."""
    rule = LossScale(start, growth=2.0, backoff=0.5, interval=3)
    state = rule.empty(CPU)
    scale, steps = torch.tensor(start), torch.zeros((), dtype=torch.int32)
    for finite in [True] * 8 + [False] * 3 + [True, True, False] + [True] * 7:
        bad = torch.tensor(0.0 if finite else 1.0)
        torch._amp_update_scale_(scale, steps, bad, rule.growth, rule.backoff, rule.interval)
        rule.update(state, finite=torch.tensor(finite))
        assert float(state["scale"]) == float(scale)
        assert float(state["steps"]) == float(steps)
    rule.load(state)
    assert (float(state["scale"]), float(state["steps"])) == (start, 0)


@pytest.mark.parametrize("planted", [None, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("scale", [65536.0, 3.0])
def test_gradients_are_divided_and_checked_as_by_torch(planted, scale):
    rng = torch.Generator().manual_seed(0)
    grads = {name: torch.randn(size, generator=rng) * 1e38 for name, size in (("a", 7), ("b", 3))}
    if planted is not None:
        grads["b"][1] = planted
    expected = {name: grad.clone() for name, grad in grads.items()}
    found, inverse = torch.zeros(()), torch.tensor(scale).double().reciprocal().float()
    torch._amp_foreach_non_finite_check_and_unscale_([*expected.values()], found, inverse)
    divided, finite = unscaled(grads, torch.tensor(scale))
    torch.testing.assert_close(divided, expected, rtol=0, atol=0, equal_nan=True)
    assert bool(finite) == (not bool(found)) == (planted is None)


def test_a_step_that_is_left_out_changes_nothing_not_even_by_nan():
    before, after = {"w": torch.ones(3)}, {"w": torch.full((3,), torch.nan)}
    keep_unless(torch.tensor(data=False), before, after)
    assert torch.equal(after["w"], before["w"])
    after["w"].fill_(2)
    keep_unless(torch.tensor(data=True), before, after)
    assert torch.equal(after["w"], torch.full((3,), 2.0))


def test_the_options_are_those_of_the_scaler():
    scaler = torch.amp.GradScaler("cpu")
    assert loss_scale(scaler.state_dict()) == LossScale(65536.0, 2.0, 0.5, 2000)
    assert loss_scale(torch.amp.GradScaler("cpu", enabled=False).state_dict()) is None
