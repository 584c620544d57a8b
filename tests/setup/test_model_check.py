"""The trial in training mode leaves everything as it is; what models are offered."""

import numpy as np
import pytest
import torch
from torch import nn

from flfast.config.errors import ConfigError
from flfast.datamodules.examples import Examples
from flfast.datamodules.transforms import BatchTransform
from flfast.setup.model_check import model_offers, try_training
from flfast.state.injection import call_with


@pytest.mark.parametrize("bn", ["aggregate", "frozen"])
@pytest.mark.parametrize("sizes", [(6, 4), (1, 4)], ids=str)
def test_weights_buffers_and_seeds_stay_as_they_are(make_data, sizes, bn):
    data = make_data(sizes)
    width = data.examples.input_shape[0]
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(width, 8))
    model = nn.Sequential(norm, nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, data.num_classes))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seeds = torch.get_rng_state()
    try_training("net", model, data, bn=bn)
    assert torch.equal(torch.get_rng_state(), seeds)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())


def test_frozen_batchnorm_is_in_evaluation_mode_as_in_training(make_data):
    class OnlyFrozen(nn.BatchNorm1d):
        def forward(self, x):
            if self.training:
                raise RuntimeError("would be updated")
            return super().forward(x)

    data = make_data((6, 4))
    width = data.examples.input_shape[0]
    model = nn.Sequential(OnlyFrozen(width), nn.Linear(width, data.num_classes))
    try_training("net", model, data, bn="frozen")
    with pytest.raises(ConfigError, match="model=net: RuntimeError: would be updated"):
        try_training("net", model, data, bn="aggregate")


def offered(model, inputs, *, task="classification", num_classes=4):
    language = task == "language"
    targets = torch.zeros(inputs.shape if language else len(inputs), dtype=torch.int64)
    examples = Examples(
        inputs, targets, num_classes, tuple(inputs.shape[1:]), BatchTransform(), task=task
    )
    return call_with(model, **model_offers(model, examples))


@pytest.mark.parametrize(
    ("inputs", "task", "num_tokens"),
    [
        (torch.tensor([[3, 0], [8, 1]]), "classification", 9),
        (torch.tensor([[3, 0], [2, 1]]), "language", 4),
        (torch.rand(2, 3), "classification", 0),
        (torch.from_numpy(np.full((2, 1, 4, 4), 255, dtype=np.uint8)), "classification", 0),
    ],
)
def test_the_vocabulary_of_the_inputs(inputs, task, num_tokens):
    assert offered(lambda num_tokens: num_tokens, inputs, task=task) == num_tokens


def test_a_model_gets_what_it_asks_for():
    found = offered(lambda input_shape, task: (input_shape, task), torch.rand(2, 3))
    assert found == ((3,), "classification")
