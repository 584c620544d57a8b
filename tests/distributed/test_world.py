"""What ranks exchange arrives as it was sent."""

import io
import pickle

import pytest
import torch
from torch import nn

from flfast.distributed import world as world_module
from flfast.distributed.world import _Pickler, reduce_mean, spec
from flfast.state.tree import WeightedMean

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


def uploads(rank, dtype):
    rng = torch.Generator().manual_seed(rank)
    return {n: torch.randn(num, generator=rng).to(dtype) for n, num in (("w", 12), ("b", 3))}


def test_means_of_ranks_are_sent_in_the_type_of_their_sums(in_world):
    """All of float32 as float32, which loses nothing with two ranks; else as float64."""

    def run(world):
        sent, original, found = [], world_module.all_reduce, {}

        def spied(world, values):
            sent.append(values.dtype)
            original(world, values)

        world_module.all_reduce = spied
        for name, dtype, extra in [
            ("float32", torch.float32, {}),
            ("bfloat16", torch.bfloat16, {}),
            ("float64", torch.float64, {}),
            ("counts", torch.float32, {"n": torch.tensor(world.rank + 1)}),
        ]:
            mean = WeightedMean()
            mean.add({**uploads(world.rank, dtype), **extra}, 3.0 + 2 * world.rank)
            found[name] = reduce_mean(world, mean, spec(mean.like)).result()
        return found, sent

    results = in_world(2, run)
    for found, sent in results.values():
        assert sent == [torch.float32, torch.float32, torch.float64, torch.float64]
        for name, dtype in [
            ("float32", torch.float32),
            ("bfloat16", torch.bfloat16),
            ("float64", torch.float64),
            ("counts", torch.float32),
        ]:
            wide = torch.promote_types(dtype, torch.float32)
            first, second = ({n: x.to(wide) for n, x in uploads(r, dtype).items()} for r in (0, 1))
            for leaf in ("w", "b"):
                expected = (3 * first[leaf] + 5 * second[leaf]) / 8
                torch.testing.assert_close(found[name][leaf], expected, rtol=1e-6, atol=1e-7)
        assert int(found["counts"]["n"]) == round((3 * 1 + 5 * 2) / 8)
