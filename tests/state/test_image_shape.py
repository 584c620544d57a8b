"""Images with their channels last are refused wherever channels are meant to be first."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.examples import Examples
from flfast.datamodules.shifts.demands import need_images
from flfast.models.images import check_image
from flfast.models.resnet18 import resnet18
from flfast.state.image_shape import refuse_channels_last

SIDE = st.integers(5, 512)


@given(SIDE, SIDE, st.sampled_from([1, 3, 4]))
def test_large_images_with_few_channels_at_the_end_are_refused(height, width, channels):
    if height != width and min(height, width) < 16:
        refuse_channels_last((height, width, channels))
    else:
        with pytest.raises(ValueError, match=r"allowed: channels first, such as x.transpose"):
            refuse_channels_last((height, width, channels))


@given(st.sampled_from([1, 2, 3, 4, 6, 12]), SIDE, SIDE)
def test_channels_that_are_first_pass(channels, height, width):
    refuse_channels_last((min(channels, 4), height, width))
    refuse_channels_last((channels, height, width if width > 4 else 5))


@pytest.mark.parametrize("shape", [(9, 128, 3), (32,), (32, 32), (3, 3, 3), (16, 16, 8)])
def test_shapes_that_may_be_meant_so_pass(shape):
    refuse_channels_last(shape)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_models_and_shifts_refuse_them(dtype):
    with pytest.raises(ValueError, match=r"look like \[H, W, channels\]"):
        resnet18(input_shape=(32, 32, 3), num_classes=2, norm="group", groups=2, small_images=True)
    examples = Examples(torch.zeros(4, 32, 32, 3, dtype=dtype), torch.arange(4), 4)
    with pytest.raises(ValueError, match=r"look like \[H, W, channels\]"):
        need_images("rotation", examples)
    need_images("rotation", Examples(torch.zeros(4, 4, 32, 32), torch.arange(4), 4))


def test_grey_images_without_channels_are_told_how_to_get_one():
    with pytest.raises(ValueError, match=r"use x\[:, None\] in NumPy for grey images, or"):
        check_image((28, 28), model="model=cnn")
    with pytest.raises(ValueError, match="; use model=mlp"):
        check_image((28,), model="model=cnn")
