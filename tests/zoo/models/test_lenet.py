import pytest
import torch

from flfast.zoo.models.lenet import lenet


@pytest.mark.parametrize("side", [28, 32])
def test_the_number_of_parameters_is_that_of_lenet_5(side):
    # Convolutions 6 * 26 and 16 * 151, linear layers 120 * 401, 84 * 121 and 10 * 85.
    model = lenet(input_shape=(1, side, side), num_classes=10)
    assert sum(p.numel() for p in model.parameters()) == 61_706


@pytest.mark.parametrize(
    "shape", [(1, 12, 12), (2, 13, 31), (3, 32, 33), (3, 12, 64), (4, 64, 64)]
)
def test_any_image_from_12x12_gives_logits(shape):
    assert lenet(input_shape=shape, num_classes=5)(torch.rand(2, *shape)).shape == (2, 5)


def test_a_smaller_image_is_refused():
    with pytest.raises(ValueError, match=r"model=lenet needs images of at least 12x12.* 1x12x11;"):
        lenet(input_shape=(1, 12, 11), num_classes=5)


def test_inputs_that_are_no_images_are_refused():
    with pytest.raises(ValueError, match=r"model=lenet needs images .* \[60\]; use model=mlp"):
        lenet(input_shape=(60,), num_classes=5)
