"""The trial in training mode leaves everything as it is."""

import pytest
import torch
from torch import nn

from flfast.config.errors import ConfigError
from flfast.setup.model_check import try_training


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
