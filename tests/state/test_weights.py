import pytest
import torch
from torch import nn

from flfast.state.weights import flatten, load_weights, read_weights, write_weights


def model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_writing_what_was_read_restores_everything():
    source, target = model(), model()
    source(torch.randn(8, 3))
    write_weights(target, read_weights(source))
    for name, value in source.state_dict().items():
        assert torch.equal(value, target.state_dict()[name])


def test_reading_copies():
    net = model()
    weights = read_weights(net)
    with torch.no_grad():
        net[0].weight.zero_()
    assert weights["params"]["0.weight"].abs().sum() > 0


def test_flat_weights_load_as_a_state_dict():
    net = model()
    model().load_state_dict(flatten(read_weights(net)))


def test_foreign_weights_are_refused_by_name_and_shape():
    weights = read_weights(model())
    state = flatten(weights)
    state.pop("0.bias")
    state["extra"] = torch.zeros(1)
    state["2.weight"] = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"(?s)missing \['0.bias'\].*extra.*2.weight \[3, 4\]"):
        load_weights(weights, state, source="x.pt")


def test_tied_parameters_travel_once():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    assert set(read_weights(net)["params"]) == {"0.weight", "0.bias", "1.bias"}
