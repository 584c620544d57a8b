"""Channels last changes the memory layout only."""

import pytest
import torch
from torch import nn

from flfast.lit.channels_last import channels_last, use_channels_last
from flfast.models.cnn import cnn


def images(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("batch", [1, 5])
def test_values_are_equal_and_channels_are_last(batch, channels):
    original = images(batch, channels, 6, 4)
    found = channels_last(original)
    assert torch.equal(found, original)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.stride() == (6 * 4 * channels, 1, 4 * channels, channels)


@pytest.mark.parametrize("channels", [1, 3])
def test_views_of_images_keep_their_values(channels):
    original = images(8, channels, 6, 9)[::2, :, 1:5].transpose(2, 3)
    assert torch.equal(channels_last(original), original)


def test_one_channel_is_not_copied():
    original = images(4, 1, 6, 6)
    assert channels_last(original).data_ptr() == original.data_ptr()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_computes_the_same_and_keeps_its_names(channels):
    options = {"num_classes": 5, "channels": [4, 8], "hidden": 16, "padding": 0}
    plain = cnn(input_shape=(channels, 20, 20), **options).double()
    laid_out = cnn(input_shape=(channels, 20, 20), **options).double()
    laid_out.load_state_dict(plain.state_dict())
    use_channels_last(laid_out)
    batch = images(6, channels, 20, 20).double()
    torch.testing.assert_close(laid_out(batch), plain(batch), rtol=1e-12, atol=1e-12)
    for model in (plain, laid_out):
        model(batch).square().sum().backward()
    for (name, left), (other, right) in zip(
        laid_out.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert name == other
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-10, atol=1e-10)


def test_models_without_convolutions_stay_as_they_are():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    use_channels_last(model)
    assert not model._forward_pre_hooks


def test_inputs_of_a_convolutional_model_need_not_be_images():
    model = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3))
    use_channels_last(model)
    assert model(images(3, 16)).shape == (3, 2, 2, 2)
