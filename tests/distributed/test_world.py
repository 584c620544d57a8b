"""What ranks exchange arrives as it was sent."""

import io
import pickle

import pytest
import torch
from torch import nn

from flfast.distributed.world import _Pickler

GRID = torch.arange(12.0).reshape(3, 4)
SENT = {
    "float32": GRID,
    "float64": GRID.double(),
    "int64": GRID.long(),
    "bool": GRID > 3,
    "bfloat16": GRID.bfloat16(),
    "a number": torch.tensor(1.5),
    "nothing": torch.zeros(0, 3),
    "NaN": torch.tensor([float("nan"), -0.0, float("inf")]),
    "part": GRID[1:, :],
    "transposed": GRID.T,
    "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "trained": GRID.clone().requires_grad_(),
    "parameter": nn.Parameter(GRID.clone()),
    "spec": torch.empty(2, 3, device="meta"),
}


def received(value):
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return pickle.loads(file.getvalue())


@pytest.mark.parametrize("name", SENT)
def test_a_tensor_keeps_type_layout_and_bits(name):
    sent = SENT[name]
    found = received({"x": sent})["x"]
    for kept in ("dtype", "shape", "device", "requires_grad"):
        assert getattr(found, kept) == getattr(sent, kept)
    assert found.stride() == sent.stride() and type(found) is type(sent)
    if not sent.is_meta:
        assert torch.equal(found.isnan(), sent.isnan())
        assert torch.equal(found.nan_to_num(), sent.nan_to_num())


def test_what_arrived_can_be_changed_and_is_a_copy():
    found = received([GRID, GRID])
    assert found[0] is found[1], "an object that is sent twice is one object"
    found[0].add_(1)
    assert float(GRID[0, 0]) == 0 and float(found[0][0, 0]) == 1


def test_a_part_is_sent_without_the_rest():
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(torch.zeros(10**6)[:3])
    assert len(file.getvalue()) < 1000
