"""Transfers keep values and layout."""

import numpy as np
import pytest
import torch

from flfast.state.precision import to_device
from flfast.state.tree import to_host

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_a_round_trip_keeps_values_and_strides(device):
    values = {"a": np.arange(5), "b": np.array([[True, False]])}
    moved = {name: to_device(value, torch.device(device)) for name, value in values.items()}
    assert {leaf.device.type for leaf in moved.values()} == {device}
    back = to_host({"in": moved, "t": torch.ones(2, 3, device=device).t()})
    assert all(np.array_equal(back["in"][name].numpy(), value) for name, value in values.items())
    assert back["t"].stride() == (1, 3)


def test_leaves_on_the_cpu_are_not_copied():
    leaf = torch.ones(2)
    assert to_host({"a": leaf})["a"] is leaf
