import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.state.tree import WeightedMean, all_finite, leaves, num_bytes, squared_norm, sub

weights = st.lists(st.floats(0.1, 100), min_size=1, max_size=6)


def trees(num, dtype=torch.float32):
    rng = torch.Generator().manual_seed(num)
    return [
        {"params": {"w": torch.randn(3, 2, generator=rng).to(dtype)}, "n": torch.tensor(5 + i)}
        for i in range(num)
    ]


def mean_of(items, weights):
    mean = WeightedMean()
    for tree, weight in zip(items, weights, strict=True):
        mean.add(tree, weight)
    return mean.result()


@given(weights)
def test_weighted_mean_equals_the_stacked_one(weights):
    items = trees(len(weights))
    stacked = torch.stack([tree["params"]["w"] for tree in items]).double()
    expected = torch.einsum("k,kij->ij", torch.tensor(weights).double(), stacked) / sum(weights)
    torch.testing.assert_close(mean_of(items, weights)["params"]["w"], expected.float())


@given(weights, st.integers(1, 40), st.sampled_from([0, 1]))
def test_rows_are_added_as_trees_are_to_the_last_bit(weights, size, num_before):
    rows = torch.randn(len(weights), 3 * size + 1, generator=torch.Generator().manual_seed(size))
    items = [{"a": row[: 3 * size].view(3, size), "b": {"c": row[-1:].view(())}} for row in rows]
    mean = WeightedMean()
    for tree, weight in zip(items[:num_before], weights, strict=False):
        mean.add(tree, weight)
    mean.add_rows(rows.unbind()[num_before:], items[0], weights[num_before:])
    expected = mean_of(items, weights)
    for found, leaf in zip(leaves(mean.result()), leaves(expected), strict=True):
        assert torch.equal(found, leaf)


@given(weights, st.floats(0.1, 10))
def test_weighted_mean_ignores_order_and_scale(weights, scale):
    items = trees(len(weights))
    forward = mean_of(items, weights)
    backward = mean_of(items[::-1], [scale * w for w in weights[::-1]])
    torch.testing.assert_close(forward["params"]["w"], backward["params"]["w"])


def test_weighted_mean_leaves_its_inputs_alone():
    items = trees(2)
    before = items[0]["params"]["w"].clone()
    mean_of(items, [1.0, 2.0])
    assert torch.equal(items[0]["params"]["w"], before)


def test_integer_leaves_round_and_keep_their_type():
    mean = mean_of(trees(2), [1.0, 3.0])["n"]  # (5 + 3 * 6) / 4 = 5.75
    assert mean.dtype == torch.int64
    assert mean == 6


def test_bfloat16_uploads_average_in_float32():
    ones = [{"w": torch.tensor([1.0], dtype=torch.bfloat16)}] * 999
    mean = mean_of([*ones, {"w": torch.tensor([2.0], dtype=torch.bfloat16)}], [1.0] * 1000)["w"]
    torch.testing.assert_close(mean, torch.tensor([1.001]))


def test_num_bytes_counts_every_leaf():
    assert num_bytes(trees(1)[0]) == 6 * 4 + 8


def test_norm_of_a_difference():
    left, right = ({"a": torch.full((2,), x)} for x in (3.0, 1.0))
    assert squared_norm(sub(left, right)) == 8
    assert len(list(leaves(left))) == 1


def test_nan_and_infinity_are_found():
    for bad in (float("nan"), float("inf"), float("-inf")):
        assert not all_finite({"a": torch.zeros(3), "b": {"c": torch.tensor([0.0, bad])}})
    assert all_finite({"a": torch.tensor([3e38, 3e38]), "n": torch.tensor(3)})
    assert all_finite({})
