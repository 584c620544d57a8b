"""Heads of one linear layer: their logits, and models that have none."""

import pytest
import torch
from torch import nn

from flfast.algorithms.kit.last_layer import linear_head
from flfast.state.weights import by_name, read_weights


def layers(*last, bias=True):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3, bias=bias), *last)


@pytest.mark.parametrize("head", [None, ["2"], [r"2\..*"]])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_are_those_of_the_model(head, bias):
    model = layers(bias=bias).eval()
    x, found = torch.rand(5, 4), linear_head(read_weights(model), head)
    assert (found.layer, found.shape) == ("2", (3, 6))
    torch.testing.assert_close(found.logits(by_name(read_weights(model)), model[:2](x)), model(x))


def test_a_model_may_be_its_head():
    model, x = nn.Linear(4, 3), torch.rand(5, 4)
    found = linear_head(read_weights(model), None)
    torch.testing.assert_close(found.logits(by_name(read_weights(model)), x), model(x))


@pytest.mark.parametrize(
    ("model", "head", "message"),
    [
        (layers(), ["0"], r"algorithm\.head=\['0'\] is 0\.weight, 0\.bias; .* last layer, \[2\]"),
        (layers(), ["1", "2"], r"\['1', '2'\] is 1\.weight, .*2\.bias"),
        (layers(), ["2.weight"], r"algorithm\.head=\['2.weight'\] is 2\.weight; allowed"),
        (layers(nn.LayerNorm(3)), None, r"algorithm\.head=null is 3\.weight, 3\.bias; allowed"),
        (nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 3, 1)), None, r"algorithm\.head=null"),
        (layers(), ["fc"], r"algorithm\.head: 'fc' matches nothing"),
    ],
)
def test_other_heads_are_refused(model, head, message):
    with pytest.raises(ValueError, match=message):
        linear_head(read_weights(model), head)
