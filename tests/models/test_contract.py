"""Properties of every model in conf/model."""

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

FOLDER = Path(__file__).parents[2] / "conf" / "model"
YAMLS = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "custom")
per_model = pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)


@per_model
@pytest.mark.parametrize("input_shape", [(1, 28, 28), (3, 32, 32), (3, 40, 20)])
def test_every_yaml_builds_a_model_that_maps_a_batch_to_logits(path, input_shape):
    model = instantiate(OmegaConf.load(path))(input_shape=input_shape, num_classes=7)
    assert model(torch.rand(2, *input_shape)).shape == (2, 7)


@per_model
def test_every_parameter_gets_a_gradient(path):
    model = instantiate(OmegaConf.load(path))(input_shape=(1, 28, 28), num_classes=3)
    loss = nn.functional.cross_entropy(model(torch.rand(4, 1, 28, 28)), torch.tensor([0, 1, 2, 0]))
    loss.backward()
    assert [
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()
    ] == []


@per_model
def test_the_classification_head_is_named_fc(path):
    model = instantiate(OmegaConf.load(path))(input_shape=(1, 28, 28), num_classes=3)
    name, head = list(model.named_modules())[-1]
    assert name == "fc"
    assert head.out_features == 3
