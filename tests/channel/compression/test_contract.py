"""Properties of every compression, and the size of each message against what it must hold."""

import numpy as np
import pytest
import torch
from changes import changes
from hydra.utils import instantiate
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from sampling import others_slow
from tied import generators, rounded_otherwise, tied

from flfast.channel.compression.compression import transmit, with_feedback
from flfast.channel.compression.float16 import float16
from flfast.channel.compression.quantize import quantize
from flfast.channel.compression.randk import randk
from flfast.channel.compression.sign import sign
from flfast.channel.compression.topk import topk
from flfast.state.near_ties import EQUAL
from flfast.state.options import num_of_share
from flfast.state.tree import leaves, tree_map
from flfast.zoo.channel.compression.lowrank import lowrank
from flfast.zoo.channel.compression.powersgd import powersgd

EVERY = {
    "float16": float16(downloads=False),
    "quantize": quantize(bits=8, bucket=16, downloads=False),
    "quantize_by_leaf": quantize(bits=3, bucket=None, downloads=False),
    "quantize_one_bit": quantize(bits=1, bucket=None, downloads=False),
    "topk": topk(share=0.2, feedback=True),
    "randk": randk(share=0.3, feedback=False),
    "sign": sign(feedback=True),
    "powersgd": powersgd(rank=2, feedback=True),
    "lowrank": lowrank(rank=1, feedback=True),
}
LOSSLESS = {
    "topk": topk(share=1.0, feedback=False),
    "randk": randk(share=1.0, feedback=False),
    "powersgd": powersgd(rank=100, feedback=False),
    "lowrank": lowrank(rank=100, feedback=False),
}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
every = pytest.mark.parametrize(
    "name", others_slow(EVERY, EVERY.keys() - {"quantize_by_leaf", "quantize_one_bit"})
)
few = settings(max_examples=25)


def rng(seed=3):
    return np.random.Generator(np.random.Philox(seed))


def sent(compression, change, seed=3):
    return transmit(compression, change, rng(seed))[1]


def vector(tree):
    return torch.cat([torch.empty(0), *(leaf.double().flatten() for leaf in leaves(tree))])


def test_every_yaml_of_the_group_is_tested(root):
    options = {path.stem for path in (root / "conf" / "compression").glob("*.yaml")}
    assert options == {"none", *(compression.name for compression in EVERY.values())}
    for option in options:
        config = OmegaConf.load(root / "conf" / "compression" / f"{option}.yaml")
        found = instantiate(config)
        assert found.name == option
        assert (found.encode is None) == (found.decode is None) == (option == "none")


@every
@few
@given(changes(dtypes=FLOATS))
def test_a_change_arrives_with_its_structure_and_finite(name, change):
    before = tree_map(torch.clone, change)
    found = sent(EVERY[name], change)

    def same(one, other):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.isfinite().all()
        return one

    tree_map(same, found, change)
    assert {key: list(part) for key, part in found.items() if isinstance(part, dict)} == {
        key: list(part) for key, part in change.items() if isinstance(part, dict)
    }
    torch.testing.assert_close(change, before, rtol=0, atol=0)


@every
@few
@given(changes(dtypes=FLOATS))
def test_shapes_and_dtypes_are_enough_to_decode(name, change):
    compression = EVERY[name]
    message = compression.encode(change, rng())
    meta = tree_map(lambda leaf: torch.empty_like(leaf, device="meta"), change)
    first, second = (compression.decode(message, like, rng()) for like in (change, meta))
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    torch.testing.assert_close(first, sent(compression, change), rtol=0, atol=0)


@every
@few
@given(changes(kinds=("zero",)))
def test_nothing_changed_arrives_as_nothing_changed(name, change):
    assert not vector(sent(EVERY[name], change)).any()


@pytest.mark.parametrize("name", LOSSLESS)
@few
@given(changes(dtypes=FLOATS))
def test_all_of_a_change_arrives_to_the_last_bit(name, change):
    torch.testing.assert_close(sent(LOSSLESS[name], change), change, rtol=0, atol=0)


LIKE = {"a": torch.empty(30, 20), "b": {"c": torch.empty(20), "d": torch.empty(())}}
EMPTY = torch.empty(0)
SIZES = {  # D = 621 elements, 3 leaves
    "float16": 2 * 621,
    "quantize": 4 * 39 + 624,  # 39 buckets of 16 elements
    "quantize_by_leaf": 4 * 3 + 3 * 624 / 8,
    "quantize_one_bit": 4 * 3 + 624 / 8,
    "topk": 4 * 125 + 36 + 32,  # 125 values; 281 high bits, 2 low bits for 125 rounded up to 128
    "randk": 4 * 187,  # no indices
    "sign": 4 * 3 + 78,
    "powersgd": 4 * (2 * (30 + 20) + 21),
    "lowrank": 4 * (1 * (30 + 20) + 21),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_message_has_the_bytes_that_it_must_hold(name):
    change = tree_map(lambda leaf: torch.randn(leaf.shape), {**LIKE, "empty": EMPTY})
    assert len(EVERY[name].encode(change, rng())) == SIZES[name]


@every
@few
@given(changes(kinds=("normal", "zero", "equal", "one")), st.integers(0, 9))
def test_what_is_sent_and_what_is_kept_add_up(name, change, seed):
    kept = tree_map(lambda leaf: 0.3 * leaf.flip(0) if leaf.dim() else leaf, change)
    message, found, rest = with_feedback(EVERY[name], change, kept, rng(seed))
    wanted = tree_map(torch.add, change, kept)
    assert message == EVERY[name].encode(wanted, rng(seed))
    torch.testing.assert_close(found, sent(EVERY[name], wanted, seed), rtol=0, atol=0)
    scale = float(vector(wanted).abs().max()) if len(vector(wanted)) else 0.0
    total = tree_map(torch.add, found, rest)
    torch.testing.assert_close(total, wanted, rtol=1e-6, atol=3e-7 * scale)


ROWS = torch.tensor([[-3.0, 2.0, 2.0], [2.0, -3.0, 2.0], [2.0, 2.0, -3.0]])


def descend(compression, *, feedback, steps=600, rate=0.02):
    """Gradient descent on Beznosikov et al., On Biased Compression, JMLR 2023, example 1.

    Three clients with f_i(x) = <a_i, x>^2 + |x|^2 / 4, which begin at (1, 1, 1).
    """
    x, kept = torch.ones(3), [{"x": torch.zeros(3)} for _ in ROWS]
    for step in range(steps):
        moves = []
        for client, row in enumerate(ROWS):
            change = {"x": -rate * (2 * (row @ x) * row + x / 2)}
            if feedback:
                _, move, kept[client] = with_feedback(compression, change, kept[client], rng(step))
            else:
                move = sent(compression, change, step)
            moves.append(move["x"])
        x = x + torch.stack(moves).mean(dim=0)
    return float(x.norm())


@pytest.mark.slow
def test_error_feedback_makes_the_largest_elements_converge():
    largest = topk(share=0.3, feedback=True)  # one of three elements
    assert descend(largest, feedback=False, steps=100) > 10 * 3**0.5
    assert descend(largest, feedback=True) < 1e-2


AGREEMENT = 1e-5
"""Relative to the largest value of a leaf: to this all ways to execute a run agree."""
SHAPES = {"a": (9, 7), "b": (2, 8), "c": (5, 1)}
LEVELS = {"quantize": 2 / 254, "quantize_by_leaf": 2 / 6, "quantize_one_bit": 2.0}
"""Distance between levels, beside the largest magnitude."""


def at_an_edge(name, leaves):
    """Whether a value lies where the choice changes; only there may rounding decide."""
    if name == "topk":
        sizes = np.sort(np.abs(np.concatenate([leaf.ravel() for leaf in leaves.values()])))
        threshold = sizes[-num_of_share(0.2, len(sizes))]
        edges = np.array([1 - EQUAL, 1 + EQUAL]) * threshold
        return bool((np.abs(sizes - edges[:, None]) < AGREEMENT * threshold).any())
    if name == "sign":
        scaled = [leaf / max(np.abs(leaf).mean(), 1e-30) for leaf in leaves.values()]
        return any((np.abs(leaf + EQUAL) < AGREEMENT).any() for leaf in scaled)
    if name in {"powersgd", "lowrank"}:  # singular values that are equal, or zero
        kept = {"powersgd": 2, "lowrank": 1}[name]
        matrices = [leaf.astype(float) for leaf in leaves.values() if min(leaf.shape) > kept]
        found = [np.linalg.svd(matrix, compute_uv=False) for matrix in matrices]
        return any(values[kept - 1] - values[kept] <= 0.05 * values[0] for values in found)
    return False


CHOOSING = ("quantize", "topk", "sign", "powersgd")
"""Those that choose among values which may be equal; each is another way to choose."""


@pytest.mark.parametrize("name", others_slow(EVERY, CHOOSING))
@settings(max_examples=25)
@given(generators(), st.sampled_from([np.float32, np.float64]))
def test_changes_that_differ_by_rounding_arrive_as_the_same(name, random, dtype):
    leaves = {key: tied(random, shape, dtype) for key, shape in SHAPES.items()}
    assume(not at_an_edge(name, leaves))
    others = {key: rounded_otherwise(leaf, random) for key, leaf in leaves.items()}
    first, second = (
        sent(EVERY[name], {key: torch.from_numpy(leaf) for key, leaf in tree.items()})
        for tree in (leaves, others)
    )
    largest = max(float(np.abs(leaf).max()) for leaf in leaves.values())
    error = (vector(first) - vector(second)).abs()
    if name in LEVELS:  # values between levels are rounded at random, up or down
        assert float(error.max()) <= (LEVELS[name] + AGREEMENT) * largest
        assert int((error > AGREEMENT * largest).sum()) <= 2
    elif name == "float16":  # rounds itself
        assert (error <= 2.0**-10 * vector(first).abs() + AGREEMENT * largest).all()
    else:
        assert float(error.max()) <= AGREEMENT * largest
