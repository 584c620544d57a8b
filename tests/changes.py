"""Changes of any shapes, types and magnitudes."""

import numpy as np
import torch
from hypothesis import strategies as st

SHAPES = [(), (0,), (1,), (7,), (40,), (3, 0), (5, 4), (4, 3, 2), (12, 9), (1, 8)]
KINDS = ["normal", "zero", "equal", "denormal", "huge", "one"]


def values(kind, shape, rng):
    match kind:
        case "normal":
            return rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 3)
        case "zero":
            return np.zeros(shape)
        case "equal":
            return np.full(shape, -0.37)
        case "denormal":
            return rng.standard_normal(shape) * 1e-42
        case "huge":
            return rng.uniform(-3.4e38, 3.4e38, shape)
        case "one":  # far from all others
            found = np.array(1e-3 * rng.standard_normal(shape))
            found.reshape(-1)[:1] = 1e6
            return found


def leaf(kind, shape, dtype, rng):
    found = torch.from_numpy(np.array(values(kind, shape, rng))).clamp(
        torch.finfo(dtype).min, torch.finfo(dtype).max
    )
    return found.to(dtype)


@st.composite
def changes(draw, kinds=tuple(KINDS), dtypes=(torch.float32, torch.float64)):
    """A nested tree; some leaves are not contiguous, some are empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(kinds))
    dtype = draw(st.sampled_from(dtypes))
    shapes = draw(st.lists(st.sampled_from(SHAPES), max_size=5))
    tree = {"params": {}, "empty": {}}
    for place, shape in enumerate(shapes):
        found = leaf(kind, shape, dtype, rng)
        if len(shape) == 2 and place % 2:
            found = leaf(kind, shape[::-1], dtype, rng).T
            assert found.shape == shape
        if place == 3:
            tree["other"] = found
        else:
            tree["params"][f"layer/{place}"] = found
    return tree
