"""Our C++ gives the bits of torch's operators."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.channel.compression import rounding
from flfast.channel.compression.rounding import Buckets

layouts = st.builds(
    Buckets,
    st.lists(st.integers(0, 9000), min_size=1, max_size=4).map(tuple),
    st.none() | st.integers(1, 3000),
)


def by_torch(function, *args):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "missing", lambda: "no compiler")
        return function(*args)


@pytest.mark.usefixtures("kernels")
@settings(max_examples=25)
@given(layouts, st.sampled_from([1e-30, 1.0, 3e38]), st.integers(1, 8), st.integers(0, 2**63))
def test_both_ways_give_the_same_bits(buckets, scale, bits, seed):
    random = torch.Generator().manual_seed(seed % 2**32)
    vector = torch.rand(sum(buckets.sizes), generator=random).mul_(2).sub_(1).mul_(scale)
    vector[vector.abs() < 1e-35] = 0  # `quantize` sends buckets of such values as zeros
    largest = buckets.largest(vector)
    assert torch.equal(largest, by_torch(buckets.largest, vector))
    assert len(largest) == buckets.num
    half = max(2.0 ** (bits - 1) - 1, 0.5)
    factors = half * (1 - 2.0**-22) / largest.clamp(min=1e-35)
    args = factors, half, seed
    levels = buckets.rounded(vector.clone(), *args)
    np.testing.assert_array_equal(levels, by_torch(buckets.rounded, vector.clone(), *args))
    args = largest / max(half, 1), half, 2.0 if bits == 1 else 1.0
    values = buckets.values(levels, *args)
    assert torch.equal(values, by_torch(buckets.values, levels, *args))
    # One level up or down: of a bit, from -scale to scale.
    step = largest * (2 if bits == 1 else 1 / half)
    of_element = torch.repeat_interleave(step, widths(*buckets))
    assert ((values - vector).abs().double() <= 1.001 * of_element.double()).all()


def widths(sizes, bucket):
    """Elements of each bucket."""
    if bucket is None:
        return torch.tensor([size for size in sizes if size], dtype=torch.int64)
    num = sum(sizes)
    found = [min(bucket, num - start) for start in range(0, num, bucket)]
    return torch.tensor(found, dtype=torch.int64)


@pytest.mark.usefixtures("kernels")
def test_the_message_of_a_model_in_float64_is_rounded_by_torch():
    vector = torch.linspace(-1, 1, 7, dtype=torch.float64)
    buckets = Buckets((7,), None)
    levels = buckets.rounded(vector.clone(), torch.tensor([127.0]).double(), 127.0, 3)
    values = buckets.values(levels, torch.tensor([1 / 127.0]).double(), 127.0, 1.0)
    assert values.dtype == torch.float64
    torch.testing.assert_close(values, vector, rtol=0, atol=1 / 127)


def test_kernels_refuse_vectors_that_do_not_fit(kernels):
    with pytest.raises(RuntimeError, match="all buckets' elements"):
        kernels.largest_magnitudes(torch.zeros(5), [2], [3])
    with pytest.raises(RuntimeError, match="a float32 for each bucket"):
        state = torch.zeros(4, dtype=torch.int64)
        kernels.round_randomly(torch.zeros(6), torch.zeros(1), state, 0.5, [2], [3])
