import pytest
import torch
from torch import nn

from flfast.models.mlp import mlp


def build(input_shape=(1, 28, 28), *, hidden=(200, 200), dropout=0.0):
    return mlp(input_shape=input_shape, num_classes=10, hidden=list(hidden), dropout=dropout)


def test_the_2nn_has_the_published_number_of_parameters():
    assert sum(p.numel() for p in build().parameters()) == 199_210


@pytest.mark.parametrize("input_shape", [(60,), (3, 4), (1, 8, 8)])
@pytest.mark.parametrize("hidden", [[], [5], [5, 4, 3]])
def test_any_input_and_any_depth_give_logits(input_shape, hidden):
    assert build(input_shape, hidden=hidden)(torch.rand(2, *input_shape)).shape == (2, 10)


def test_dropout_acts_in_training_only_and_is_absent_at_zero():
    inputs = torch.rand(2, 1, 28, 28)
    model = build(dropout=0.5)
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))
    assert not any(isinstance(module, nn.Dropout) for module in build().modules())
