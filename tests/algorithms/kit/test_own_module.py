"""Modules that an algorithm has beside the model."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flfast.algorithms.kit.own_module import OwnModule
from flfast.state.weights import by_name


def gate(*, seed=0, name="gate", dtype=torch.float32):
    def make():
        return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU())

    return OwnModule(name, make, {"params": {"fc": torch.ones(1, dtype=dtype)}}, seed=seed)


def test_names_of_leaves_cannot_be_names_of_a_model():
    names = by_name(gate().initial).keys()
    assert names == {f".gate.{leaf}" for leaf in ("0.weight", "0.bias", "1.weight", "1.bias")}
    with pytest.raises(KeyError, match="empty string"):
        nn.Module().add_module("", nn.ReLU())


def test_initial_weights_are_a_function_of_seed_and_name():
    def drawn(**options):
        return next(iter(gate(**options).initial["params"].values()))

    before = torch.get_rng_state()
    first = drawn(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert torch.equal(drawn(seed=3), first)
    assert not torch.equal(drawn(seed=4), first)
    assert not torch.equal(drawn(seed=3, name="valve"), first)


def test_initial_weights_have_the_type_of_the_model():
    found, expected = (by_name(gate(dtype=d).initial) for d in (torch.float64, torch.float32))
    assert all(leaf.dtype == torch.float64 for leaf in found.values())
    torch.testing.assert_close(found, expected, check_dtype=False)


def test_it_computes_with_the_given_weights_alone():
    own, z = gate(), torch.rand(5, 3, dtype=torch.float64)
    weights = {name: torch.full_like(leaf, 0.5) for name, leaf in by_name(own.initial).items()}
    weights[".gate.0.weight"] = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    found = own({"fc.weight": torch.ones(()), **weights}, z)
    hidden = F.layer_norm(z @ weights[".gate.0.weight"].T + 0.5, (4,))
    torch.testing.assert_close(found, F.relu(0.5 * hidden + 0.5))
    assert torch.autograd.grad(found.sum(), weights[".gate.0.weight"])[0].abs().max() > 0


def test_missing_weights_are_not_replaced_by_initial_ones():
    own = gate()
    weights = by_name(own.initial)
    del weights[".gate.0.bias"]
    with pytest.raises(RuntimeError, match=r"Missing.*0\.bias"):
        own(weights, torch.rand(5, 3))
