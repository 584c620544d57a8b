import torch
from torch import nn

from flfast.lit.batchnorm import batchnorm_layers, batchnorm_weights
from flfast.state.weights import read_weights


class Block(nn.Module):
    """BatchNorm under names that say nothing, nested, of three types."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        self.bn_like_name = nn.Linear(2, 2)
        self.deep = nn.ModuleList([nn.Sequential(nn.BatchNorm1d(2))])
        self.sync = nn.SyncBatchNorm(2)


def test_batchnorm_is_found_by_type_at_any_depth():
    found = {name for name, _ in batchnorm_layers(Block())}
    assert found == {"first.1", "deep.0.0", "sync"}


def test_its_weights_are_parameters_and_buffers_of_those_layers_only():
    model = Block()
    found = batchnorm_weights(model, read_weights(model))
    layers = {"first.1", "deep.0.0", "sync"}
    assert {name.rpartition(".")[0] for name in found["params"]} == layers
    assert {name.rpartition(".")[0] for name in found["buffers"]} == layers
    assert len(found["params"]) == 6
    assert len(found["buffers"]) == 9


def test_a_bare_batchnorm_is_all_its_own():
    model = nn.BatchNorm1d(3)
    assert set(batchnorm_weights(model, read_weights(model))["params"]) == {"weight", "bias"}
    assert torch.equal(read_weights(model)["params"]["weight"], torch.ones(3))
