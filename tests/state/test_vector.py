import pytest
import torch

from flfast.state.vector import (
    clipped,
    counts_in_range,
    from_vectors,
    learned,
    learned_norm,
    map_learned,
    to_vectors,
    vector_sizes,
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


UPLOAD = {
    "params": {
        "w": torch.tensor([2.0, 0.0]),
        COUNTS: torch.tensor(2.0),  # a model may have a parameter of this name
        "half": torch.tensor([1.0]).bfloat16(),
    },
    "buffers": {"num": torch.tensor(4)},
    COUNTS: {"steps": torch.tensor(9.0)},
}


def test_learned_leaves_are_those_of_floats_that_are_no_counts():
    found = map_learned(lambda leaf: -2.0 * leaf.double(), UPLOAD, [COUNTS])
    assert found["params"]["w"].tolist() == [-4, 0]
    assert found["params"][COUNTS] == -4
    assert found["params"]["half"].dtype == torch.bfloat16
    assert (found["buffers"]["num"], found[COUNTS]["steps"]) == (4, 9)
    assert list(found) == list(UPLOAD)
    assert learned(UPLOAD, [COUNTS]) == {"params": UPLOAD["params"]}
    assert learned_norm(UPLOAD, [COUNTS]) == pytest.approx(3)


def test_a_long_upload_is_scaled_down_to_the_norm():
    found, is_clipped = clipped(UPLOAD, [COUNTS], 1.5)
    assert is_clipped
    assert found["params"]["w"].tolist() == [1, 0]
    assert clipped(UPLOAD, [COUNTS], 3.5) == (UPLOAD, False)


@pytest.mark.parametrize("value", [-1.0, 2.0**31, torch.nan, torch.inf])
def test_counts_must_be_finite_and_in_range(value):
    def fits(upload):
        return counts_in_range(upload, [COUNTS])

    assert not fits({COUNTS: {"optimizer": {"w": {"step": torch.tensor(value)}}}})
    assert fits({COUNTS: {"steps": torch.tensor(2.0**30)}, "w": torch.tensor(value)})
    assert fits({"w": torch.tensor(value)})
