"""Each compression against its definition."""

import math

import numpy as np
import pytest
import torch
from changes import changes
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.channel.compression.bits import pack, packed_size, unpack
from flfast.channel.compression.compression import transmit
from flfast.channel.compression.float16 import float16
from flfast.channel.compression.index_sets import _num_low_bits, decode_indices, encode_indices
from flfast.channel.compression.quantize import quantize
from flfast.channel.compression.randk import randk
from flfast.channel.compression.sign import sign
from flfast.channel.compression.topk import topk
from flfast.state.near_ties import EQUAL
from flfast.state.tree import leaves
from flfast.zoo.channel.compression.lowrank import lowrank
from flfast.zoo.channel.compression.powersgd import powersgd

few = settings(max_examples=25)


def rng(seed=3):
    return np.random.Generator(np.random.Philox(seed))


def sent(compression, change, seed=3):
    return transmit(compression, change, rng(seed))[1]


def pairs(found, change):
    return zip(leaves(found), leaves(change), strict=True)


def num_index_bytes(num, size):
    if num in {0, size}:
        return 0
    low = _num_low_bits(num, size)
    if low is None:
        return math.ceil(size / 8)
    whole, rest = divmod(low, 8)
    return math.ceil((num + (size >> low) + 1) / 8) + whole * num + packed_size(num, rest)


@few
@given(st.integers(0, 8), st.integers(0, 70), st.integers(0, 99))
def test_packed_values_are_unpacked(bits, num, seed):
    values = rng(seed).integers(0, 2**bits, num).astype(np.uint8)
    packed = pack(values, bits)
    assert packed.dtype == np.uint8
    assert len(packed) == packed_size(num, bits) == math.ceil(num / 8) * bits
    assert unpack(packed, num, bits).tolist() == values.tolist()


@settings(max_examples=25)
@given(st.integers(0, 5000), st.floats(0, 1), st.integers(0, 99))
def test_sets_of_indices_are_decoded_and_small(size, share, seed):
    num = round(share**3 * size)
    indices = np.sort(rng(seed).choice(size, num, replace=False))
    data = encode_indices(indices, size)
    assert len(data) == num_index_bytes(num, size)
    found = decode_indices(data + b"more", num, size)
    assert found.tolist() == indices.tolist()
    if 0 < num < size:
        necessary = math.log2(math.comb(size, num))
        assert necessary <= 8 * len(data) <= min(num * (2 + math.log2(size / num)), size) + 64


def test_few_indices_of_many_take_more_than_a_byte_each():
    indices = np.array([3, 70_000, 70_001, 16_000_000])
    data = encode_indices(indices, 16_000_001)
    assert len(data) == num_index_bytes(4, 16_000_001) <= 4 * 3 + 3
    assert decode_indices(data, 4, 16_000_001).tolist() == indices.tolist()


@few
@given(changes(dtypes=(torch.float32,)))
def test_half_precision_has_its_error(change):
    for found, x in pairs(sent(float16(downloads=False), change), change):
        bounded = x.clamp(-65504, 65504)
        error = (found - bounded).abs().double()
        assert (error <= torch.maximum(bounded.abs() * 2.0**-11, torch.tensor(2.0**-25))).all()


def test_leaves_of_16_bits_stay_as_they_are():
    for dtype in (torch.float16, torch.bfloat16):
        change = {"a": torch.tensor([1e-7, 3.14, -1e4]).to(dtype)}
        assert torch.equal(sent(float16(downloads=True), change)["a"], change["a"])


def scales_by_element(change, bucket):
    if bucket is None:
        return torch.cat([x.abs().max().expand(x.numel()) for x in leaves(change) if x.numel()])
    flat = torch.cat([x.flatten() for x in leaves(change)])
    return torch.cat([part.abs().max().expand(len(part)) for part in flat.split(bucket)])


@settings(max_examples=25)
@given(changes(), st.integers(1, 8), st.sampled_from([None, 1, 3, 16, 1000]))
def test_quantized_elements_are_at_a_level_next_to_them(change, bits, bucket):
    if not sum(x.numel() for x in leaves(change)):
        return
    found = sent(quantize(bits=bits, bucket=bucket, downloads=False), change)
    x, y = (torch.cat([leaf.flatten() for leaf in leaves(t)]).double() for t in (change, found))
    scale = scales_by_element(change, bucket).double()
    distance = 2 * scale if bits == 1 else scale / (2 ** (bits - 1) - 1)
    assert ((y - x).abs() <= distance * (1 + 1e-5) + 1e-35).all()
    assert (y.abs() <= scale * (1 + 1e-6)).all()
    big = distance > 1e-30
    steps = y[big] / distance[big] + (0.5 if bits == 1 else 0)
    assert ((steps - steps.round()).abs() < 1e-4).all()


@pytest.mark.parametrize(("bits", "bucket"), [(1, None), (2, 100), (4, None), (8, 1)])
def test_quantized_elements_are_unbiased(bits, bucket):
    x = torch.linspace(-1, 1, 41)
    x = torch.cat([x, torch.tensor([0.0, 1e-3, -1e-3])])
    repeats = 4000
    compression = quantize(bits=bits, bucket=bucket, downloads=False)
    total = torch.zeros_like(x).double()
    for seed in range(repeats // 100):
        found = sent(compression, {"x": x.repeat(100)}, seed)["x"]
        total += found.double().view(100, -1).sum(dim=0)
    distance = 2.0 if bits == 1 else 1 / (2 ** (bits - 1) - 1)
    # Five standard deviations of a mean of numbers in an interval of this length.
    bound = 5 * distance / 2 / repeats**0.5 + 2.0**-16
    assert float((total / repeats - x).abs().max()) < bound
    if bits > 1:
        assert total[-3] == 0


def test_a_scale_serves_its_bucket_or_its_leaf():
    change = {"a": torch.full((40_000,), 1e-3), "b": torch.full((4,), 1e3)}
    fine = sent(quantize(bits=2, bucket=None, downloads=False), change)
    torch.testing.assert_close(fine, change)
    mixed = sent(quantize(bits=2, bucket=40_004, downloads=False), change)
    assert set(mixed["a"].tolist()) <= {0.0, 1000.0}


@few
@given(changes(), st.floats(0.001, 1))
def test_the_largest_elements_arrive_exactly_and_others_are_zero(change, share):
    found = sent(topk(share=share, feedback=False), change)
    x, y = (torch.cat([torch.empty(0), *map(torch.flatten, leaves(t))]) for t in (change, found))
    num = min(math.ceil(share * len(x) * (1 - 1e-12)), len(x))
    order = sorted(range(len(x)), key=lambda i: (-abs(float(x[i])), i))
    expected = torch.zeros_like(x)
    expected[order[:num]] = x[order[:num]]
    assert torch.equal(y, expected)


@pytest.mark.parametrize("repeats", [pytest.param(3000, marks=pytest.mark.slow), 500])
def test_random_elements_are_unbiased_and_each_is_sent_as_often(repeats):
    x, compression = torch.arange(1.0, 11.0), randk(share=0.3, feedback=False)
    found = torch.stack([sent(compression, {"x": x}, seed)["x"] for seed in range(repeats)])
    assert ((found != 0).sum(dim=1) == 3).all()
    often = (found != 0).double().mean(dim=0)
    assert float((often - 0.3).abs().max()) < 5 * (0.3 * 0.7 / repeats) ** 0.5
    torch.testing.assert_close(found.max(dim=0).values, x * 10 / 3)


def test_with_feedback_random_elements_are_not_scaled():
    x = torch.arange(1.0, 11.0)
    found = sent(randk(share=0.3, feedback=True), {"x": x})["x"]
    assert sorted((found != 0).tolist()) == [False] * 7 + [True] * 3
    assert torch.equal(found[found != 0], x[found != 0])


@few
@given(changes(kinds=("normal", "zero", "equal", "one")))
def test_signs_arrive_with_the_mean_magnitude_of_their_leaf(change):
    for found, x in pairs(sent(sign(feedback=True), change), change):
        if x.numel():
            mean = x.double().abs().mean()
            expected = torch.where(x.double() >= -EQUAL * mean, 1.0, -1.0).double() * mean
            torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


@few
@given(st.integers(0, 99), st.integers(1, 3))
def test_factors_of_a_matrix_of_their_rank_are_exact_and_svd_is_the_best(seed, rank):
    draw = torch.Generator().manual_seed(seed)
    matrix = torch.randn(20, 3, 5, generator=draw)
    low = (torch.randn(20, rank, generator=draw) @ torch.randn(rank, 15, generator=draw)).view(
        20, 3, 5
    )
    change = {"raw": torch.randn(7, generator=draw), "low": low, "any": matrix}
    errors = []
    for method in (lowrank, powersgd):
        found = sent(method(rank=rank, feedback=True), change, seed)
        assert torch.equal(found["raw"], change["raw"])
        torch.testing.assert_close(found["low"], low, rtol=1e-3, atol=1e-4)
        errors.append(float((found["any"] - matrix).norm()))
    tail = float(torch.linalg.svdvals(matrix.view(20, 15))[rank:].norm())
    assert errors[0] == pytest.approx(tail, rel=1e-4)
    assert tail * (1 - 1e-4) <= errors[1] < float(matrix.norm())
