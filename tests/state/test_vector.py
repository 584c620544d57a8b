import pytest
import torch

from flfast.state.vector import (
    change_norm,
    counts_in_range,
    from_vectors,
    to_vectors,
    vector_sizes,
    with_change,
    with_scaled_change,
)

COUNTS = "counts"


def tree():
    return {
        "params": {"w": torch.randn(2, 3), "half": torch.randn(2).bfloat16()},
        "buffers": {"num": torch.tensor(7), "mean": torch.randn(3)},
        COUNTS: {"steps": torch.tensor(3.0, dtype=torch.float64)},
        "control": torch.tensor(0.5),
    }


def test_a_tree_comes_back_from_its_vectors():
    start = tree()
    learned, counted = to_vectors(start, [COUNTS])
    assert learned.dtype == torch.float32
    assert vector_sizes(start, [COUNTS]) == (12, torch.float32, 2)
    assert (len(learned), counted.tolist()) == (12, [7, 3])
    back = from_vectors(learned, counted, start, [COUNTS])
    start["params"]["half"] = start["params"]["half"].float()
    torch.testing.assert_close(back, start, rtol=0, atol=0)


def test_vectors_have_the_dtype_of_the_largest_leaf():
    wide = {"w": torch.randn(5, dtype=torch.float64), "b": torch.randn(2)}
    assert to_vectors(wide, ())[0].dtype == torch.float64
    assert to_vectors({"params": {}}, ())[0].shape == (0,)


def test_a_change_is_relative_to_the_origin_or_to_zero_where_it_has_no_such_leaf():
    origin = {"params": {"w": torch.ones(2), "other": torch.ones(3)}}
    upload = {
        "params": {
            "w": torch.tensor([2.0, 0.0]),
            "other": torch.full((2,), 2.0),
            COUNTS: torch.tensor(2.0),  # a model may have a parameter of this name
        },
        "control": {"w": torch.full((2,), 3.0)},
        "num": torch.tensor(4),
        COUNTS: {"steps": torch.tensor(9.0)},
    }
    found = with_change(upload, origin, [COUNTS], lambda change: -2 * change)
    assert found["params"]["w"].tolist() == [-1, 3]
    assert found["params"]["other"].tolist() == [-4, -4]  # the origin has another shape
    assert found["params"][COUNTS] == -4
    assert found["control"]["w"].tolist() == [-6, -6]
    assert found["num"] == 4
    assert found[COUNTS]["steps"] == 9
    assert change_norm(upload, origin, [COUNTS]) == pytest.approx(
        (1 + 1 + 4 + 4 + 4 + 9 + 9) ** 0.5
    )


@pytest.mark.parametrize("value", [-1.0, 2.0**31, torch.nan, torch.inf])
def test_counts_must_be_finite_and_in_range(value):
    def fits(upload):
        return counts_in_range(upload, [COUNTS])

    assert not fits({COUNTS: {"optimizer": {"w": {"step": torch.tensor(value)}}}})
    assert fits({COUNTS: {"steps": torch.tensor(2.0**30)}, "w": torch.tensor(value)})
    assert fits({"w": torch.tensor(value)})


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_a_change_is_scaled_as_by_a_function_of_it(share):
    rng = torch.Generator().manual_seed(0)
    upload = {"w": torch.randn(5, generator=rng), "new": torch.randn(2, generator=rng)}
    upload |= {"num": torch.tensor(3), COUNTS: {"steps": torch.tensor(9.0)}}
    origin = {"w": torch.randn(5, generator=rng)}
    expected = with_change(upload, origin, [COUNTS], lambda change: share * change)
    found = with_scaled_change(upload, origin, [COUNTS], share)
    torch.testing.assert_close(found, expected)
