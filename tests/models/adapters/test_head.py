"""Only one layer is trained, the last linear one by default."""

import pytest
import torch
from engine_runs import net
from torch import nn

from flfast.models.adapters.head import head
from flfast.state.weights import read_weights


def model():
    return net(
        lambda: nn.Linear(5, 4), lambda: nn.BatchNorm1d(4), lambda: nn.Linear(4, 3), nn.ReLU
    )


@pytest.mark.parametrize(("layer", "trained"), [(None, "2"), ("0", "0")])
def test_trees_hold_the_layer_only(layer, trained):
    adapted = head(model(), layer=layer)
    weights = read_weights(adapted.model)
    assert set(weights["params"]) == {f"{trained}.weight", f"{trained}.bias"}
    assert weights["buffers"] == {}
    complete, plain = adapted.complete(weights), model().state_dict()
    assert complete.keys() == plain.keys()
    assert all(torch.equal(complete[name], leaf) for name, leaf in plain.items())


@pytest.mark.parametrize("layer", ["9", "3", ""])
def test_a_layer_without_parameters_is_refused(layer):
    with pytest.raises(ValueError, match=f"adapter.layer={layer}: no layer .*; allowed: 0, 2"):
        head(model(), layer=layer)


def test_a_model_without_linear_layers_needs_a_name():
    with pytest.raises(ValueError, match="has no linear layer"):
        head(nn.Sequential(nn.Conv2d(1, 1, 1)), layer=None)


def test_a_layer_that_shares_its_weights_is_refused():
    tied = model()
    tied.append(nn.Linear(4, 3))
    tied[4].weight = tied[2].weight
    with pytest.raises(ValueError, match=r"adapter.layer=4 shares its weights with 2.weight"):
        head(tied, layer=None)
