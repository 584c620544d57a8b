"""Splitting a model by paths or regular expressions."""

import pytest
import torch
from torch import nn

from flfast.algorithms.kit.split import head_layer, split
from flfast.state.weights import by_name, read_weights


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.scale = nn.Parameter(torch.ones(()))
        self.fc = nn.Linear(4, 2)


WEIGHTS = read_weights(Nested())
NAMES = by_name(WEIGHTS).keys()


@pytest.mark.parametrize(
    ("head", "start"),
    [
        (None, ("fc.",)),
        (["fc"], ("fc.",)),
        (["blocks.1", "fc"], ("blocks.1.", "fc.")),
        ([r"blocks\.\d+"], ("blocks.",)),
        (["stem"], ("stem.",)),
        (["scale"], ("scale",)),
        (["fc.bias"], ("fc.bias",)),
        ([".*weight"], ("stem.0.weight", "stem.1.weight", "blocks.0.w", "blocks.1.w", "fc.w")),
    ],
)
def test_head_and_body_partition_the_model(head, start):
    top, body = map(by_name, split(WEIGHTS, head))
    assert top.keys() == {name for name in NAMES if name.startswith(start)}
    assert body.keys() == NAMES - top.keys()


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (["classifier"], "algorithm.head: 'classifier' matches nothing.*stem.0, .*fc,"),
        (["fc", "nope"], "algorithm.head: 'nope' matches nothing"),
        (["f"], "algorithm.head: 'f' matches nothing"),
        ([".*"], "leaves no body"),
        (["["], "'\\[' is not a regular expression"),
        ([], "algorithm.head=\\[\\]"),
    ],
)
def test_an_impossible_head_is_refused(head, message):
    with pytest.raises(ValueError, match=message):
        split(WEIGHTS, head)


def test_a_model_of_one_layer_has_features_but_no_body():
    weights = read_weights(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"algorithm\.head=null leaves no body"):
        split(weights, None)
    assert head_layer(weights, None) == ""
    assert head_layer(WEIGHTS, ["blocks.1", "fc"]) == "blocks.1"
