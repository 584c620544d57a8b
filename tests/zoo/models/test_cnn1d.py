import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.zoo.models.cnn1d import cnn1d


def build(input_shape, *, channels=(32, 64), kernel_size=9, hidden=(1024, 512)):
    return cnn1d(
        input_shape=input_shape,
        num_classes=6,
        channels=list(channels),
        kernel_size=kernel_size,
        hidden=list(hidden),
    )


def test_the_number_of_parameters_is_that_of_pfllibs_harcnn():
    # Convolutions 32 * (9 * 9 + 1) and 64 * (32 * 9 + 1); 64 channels of 26 are left.
    linear = 1024 * (26 * 64 + 1) + 512 * 1025 + 6 * 513
    found = sum(p.numel() for p in build((9, 128)).parameters())
    assert found == 32 * 82 + 64 * 289 + linear == 2_253_958


@given(length=st.integers(1, 40), kernel_size=st.integers(1, 9), num=st.integers(0, 3))
def test_a_series_is_refused_exactly_if_nothing_would_be_left(length, kernel_size, num):
    options = {"channels": (2,) * num, "kernel_size": kernel_size, "hidden": (3,)}
    left = length
    for _ in range(num):
        left = (left - kernel_size + 1) // 2
    if left < 1:
        with pytest.raises(ValueError, match=f"leave nothing of series of {length} samples"):
            build((2, length), **options)
    else:
        assert build((2, length), **options)(torch.rand(3, 2, length)).shape == (3, 6)


def test_inputs_that_are_no_series_are_refused():
    with pytest.raises(
        ValueError, match=r"needs series \[channels, T\], .* shape \[1, 8, 8\]; use"
    ):
        build((1, 8, 8))
