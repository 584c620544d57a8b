import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.models.cnn import cnn


def build(input_shape, num_classes=10, *, channels=(32, 64), hidden=512, padding=0):
    return cnn(
        input_shape=input_shape,
        num_classes=num_classes,
        channels=list(channels),
        hidden=hidden,
        padding=padding,
    )


@pytest.mark.parametrize(
    ("input_shape", "num_classes", "padding", "expected"),
    [
        # McMahan et al. 2017 print 1,663,370; the rest is PFLlib's FedAvgCNN.
        ((1, 28, 28), 10, 2, 1_663_370),
        ((1, 28, 28), 10, 0, 582_026),
        ((3, 32, 32), 10, 0, 878_538),
        ((3, 32, 32), 100, 0, 924_708),
    ],
)
def test_the_number_of_parameters_is_as_published(input_shape, num_classes, padding, expected):
    model = build(input_shape, num_classes, padding=padding)
    assert sum(p.numel() for p in model.parameters()) == expected


@given(height=st.integers(1, 40), width=st.integers(1, 40), padding=st.integers(0, 5))
def test_an_image_is_refused_exactly_if_it_would_vanish(height, width, padding):
    smallest = {0: 16, 1: 10, 2: 4}.get(padding, 1)
    if min(height, width) < smallest:
        with pytest.raises(ValueError, match=f"at least {smallest}x{smallest}"):
            build((1, height, width), padding=padding)
    else:
        model = build((1, height, width), channels=(2, 2), hidden=2, padding=padding)
        assert model(torch.rand(2, 1, height, width)).shape == (2, 10)


def test_the_error_for_a_small_image_says_what_works():
    with pytest.raises(
        ValueError,
        match=r"^model=cnn with model.padding=0 needs images of at least 16x16, the data have "
        r"1x8x8; use model.padding=2, model=mlp or model=logistic$",
    ):
        build((1, 8, 8))
    assert build((1, 8, 8), padding=2)(torch.rand(1, 1, 8, 8)).shape == (1, 10)


def test_padding_is_not_suggested_if_it_does_not_help():
    with pytest.raises(ValueError, match=r"1x3x3; use model=mlp or model=logistic$"):
        build((1, 3, 3))


@pytest.mark.parametrize("input_shape", [(60,), (28, 28), (1, 1, 28, 28), ()])
def test_inputs_that_are_no_images_are_refused(input_shape):
    with pytest.raises(ValueError, match=r"needs images \[channels, H, W\].*model=mlp"):
        build(input_shape)


def test_another_number_of_convolutions_is_refused():
    with pytest.raises(ValueError, match=r"model.channels=\[32\] must have 2 values"):
        build((1, 28, 28), channels=[32])
