"""The frozen base: in no tree, once per device, bit-identical."""

import pytest
import torch
from torch import nn

from flfast.models.adapters.frozen_base import FrozenBase, copy_to_shard
from flfast.state.weights import read_weights


class Tied(nn.Module):
    """An embedding whose weight is also that of the last layer, and a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.embed.weight
        self.fc = nn.Linear(7, 2)

    def forward(self, tokens):
        return self.fc(self.out(self.norm(self.lstm(self.embed(tokens))[0][:, -1])))


@pytest.fixture
def tied():
    torch.manual_seed(0)  # noqa: TID251 - a test's own model
    return Tied().eval()


TOKENS = torch.arange(12).reshape(3, 4) % 7


def test_trees_hold_the_trained_leaves_only_and_the_outputs_stay(tied):
    before = tied(TOKENS)
    base = FrozenBase(tied, ["fc.weight"])
    weights = read_weights(tied)
    assert (list(weights["params"]), weights["buffers"]) == (["fc.weight"], {})
    assert torch.equal(tied(TOKENS), before)
    assert {"embed.weight", "out.weight", "norm.running_mean", "fc.bias"} <= base.leaves.keys()
    tied(TOKENS).sum().backward()
    assert tied.fc.weight.grad is not None


def test_the_base_keeps_its_memory_and_shared_weights_stay_shared(tied):
    place = tied.embed.weight.data_ptr()
    FrozenBase(tied, ["fc.weight"])
    assert tied.embed.weight.data_ptr() == tied.out.weight.data_ptr() == place


def test_a_move_and_back_gives_the_very_tensors_and_copies_once(tied):
    """A program that refers to a tensor of the base must not see another one next round."""
    FrozenBase(tied, ["fc.weight"])
    first, parent = tied.lstm.weight_ih_l0, nn.ModuleList([tied])
    parent.to(torch.float64)
    double = tied.lstm.weight_ih_l0
    assert double.dtype == tied.fc.weight.dtype == torch.float64
    assert tied.embed.weight is tied.out.weight
    assert tied(TOKENS).dtype == torch.float64
    parent.to(torch.float32)
    assert tied.lstm.weight_ih_l0 is first
    parent.to(torch.float64)
    assert tied.lstm.weight_ih_l0 is double


def test_values_survive_a_type_that_rounds_them(tied):
    before = {name: leaf.clone() for name, leaf in tied.state_dict().items()}
    base = FrozenBase(tied, ["fc.weight"])
    tied.to(torch.bfloat16)
    assert all(torch.equal(leaf, before[name]) for name, leaf in base.leaves.items())
    copy = base.copy_of_model()
    assert torch.equal(copy.embed.weight, before["embed.weight"])
    assert copy.embed.weight.data_ptr() != base.leaves["embed.weight"].data_ptr()
    assert tied.embed.weight.dtype == torch.bfloat16
    tied.float()
    assert torch.equal(tied.embed.weight, before["embed.weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_copy_to_shard_has_the_type_of_the_model(tied, dtype):
    FrozenBase(tied, ["fc.weight"])
    copy = copy_to_shard(tied.to(dtype))
    assert {p.dtype for p in copy.parameters()} == {dtype}
    assert [name for name, p in copy.named_parameters() if p.requires_grad] == ["fc.weight"]
    assert copy.embed.weight is copy.out.weight
    assert torch.equal(copy(TOKENS), tied(TOKENS))
