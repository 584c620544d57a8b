import math

import pytest
import torch

from flfast.zoo.models.pfl_cnn import pfl_cnn


def test_the_number_of_parameters_is_the_published_one():
    model = pfl_cnn(input_shape=(3, 32, 32), num_classes=10)
    # 896 + 18,496 in the convolutions, 12,544 * 128 + 128 and 1,290 in the linear layers.
    assert sum(p.numel() for p in model.parameters()) == 896 + 18_496 + 1_605_760 + 1_290


def test_weights_begin_with_glorots_uniform_distribution():
    model = pfl_cnn(input_shape=(3, 32, 32), num_classes=10)
    for name, fans in {"conv1": 9 * (3 + 32), "conv2": 9 * (32 + 64), "fc1": 12_544 + 128}.items():
        weight, bound = model.get_submodule(name).weight, math.sqrt(6 / fans)
        assert 0.99 * bound < weight.abs().max() <= bound
        assert abs(weight.std() / bound - 1 / math.sqrt(3)) < 0.03


@pytest.mark.parametrize("shape", [(1, 6, 6), (2, 13, 31), (3, 32, 33)])
def test_any_image_from_6x6_gives_logits(shape):
    assert pfl_cnn(input_shape=shape, num_classes=5)(torch.rand(2, *shape)).shape == (2, 5)


def test_a_smaller_image_is_refused():
    with pytest.raises(ValueError, match=r"model=pfl_cnn needs images of at least 6x6.* 1x6x5;"):
        pfl_cnn(input_shape=(1, 6, 5), num_classes=5)
