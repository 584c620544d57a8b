import pytest

from flfast.zoo.models.digits_cnn import digits_cnn


def parameters(*, channels=(64, 64, 128), hidden=(2048, 512)):
    options = {"channels": [*channels], "hidden": [*hidden]}
    model = digits_cnn(input_shape=(3, 28, 28), num_classes=10, **options)
    return sum(p.numel() for p in model.parameters())


def test_it_has_the_parameters_of_the_authors_model():
    convolutions = 25 * (3 * 64 + 64 * 64 + 64 * 128) + 64 + 64 + 128
    linear = 7 * 7 * 128 * 2048 + 2048 + 2048 * 512 + 512 + 512 * 10 + 10
    norms = 2 * (64 + 64 + 128 + 2048 + 512)
    assert parameters() == convolutions + linear + norms == 14_219_210


def test_it_has_three_convolutions():
    with pytest.raises(ValueError, match=r"model.channels=\[8\] must have 3 values"):
        parameters(channels=(8,), hidden=(4,))
