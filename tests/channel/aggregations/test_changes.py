"""Rules on changes: each against its paper's equations in NumPy, and what it promises."""

from itertools import product

import numpy as np
import pytest
import torch
from adversaries import ON_CHANGES, ROBUST
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling import others_slow
from tied import generators, rounded_otherwise, tied

from flfast.channel.aggregations.aggregation import Known, Layout
from flfast.zoo.channel.aggregations.centered_clipping import centered_clipping
from flfast.zoo.channel.aggregations.sign_majority import sign_majority

every = pytest.mark.parametrize("name", ON_CHANGES)
few = settings(max_examples=15)
NUM_CLIENTS = 20


@st.composite
def cohorts(draw, min_clients=2):
    """Changes [K, D] of some of 20 clients, their ids, and the server's own change [D]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num, width = draw(st.integers(min_clients, 9)), draw(st.integers(4, 12))
    rows = rng.standard_normal((num, width)) + rng.standard_normal(width)
    clients = rng.permutation(NUM_CLIENTS)[:num]
    own = rng.standard_normal(width) + rows.mean(axis=0)
    return tuple(map(torch.from_numpy, (rows, clients, own)))


def called(rule, cohort, memory=None):
    rows, clients, own = cohort
    layout = Layout(NUM_CLIENTS, rows.shape[1], slice(rows.shape[1] // 2, None), rows.dtype)
    if memory is None:
        memory = rule.memory(layout) if rule.memory else {}
    weights = torch.ones(len(rows), dtype=torch.float64)
    known = Known(layout, clients, memory, own if rule.trusted else torch.zeros(0))
    return rule.combine(rows, weights, *([known] if rule.asks else []))


@every
@few
@given(cohorts(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(name, cohort, random):
    rule, (rows, clients, own) = ON_CHANGES[name], cohort
    order = list(range(len(rows)))
    random.shuffle(order)
    found, other = called(rule, cohort), called(rule, (rows[order], clients[order], own))
    torch.testing.assert_close(other.vector, found.vector, rtol=1e-9, atol=1e-9)
    assert other.used.tolist() == found.used[order].tolist()
    torch.testing.assert_close(other.memory, found.memory)


@every
@few
@given(cohorts())
def test_memory_is_not_changed_in_place_and_keeps_its_shape(name, cohort):
    rule = ON_CHANGES[name]
    first = called(rule, cohort).memory
    before = {name: leaf.clone() for name, leaf in first.items()}
    after = called(rule, cohort, first).memory
    torch.testing.assert_close(first, before, rtol=0, atol=0)
    assert {k: v.shape for k, v in after.items()} == {k: v.shape for k, v in before.items()}
    assert bool(after) == (rule.memory is not None)


@every
def test_empty_uploads_and_float32_are_allowed(name):
    rule = ON_CHANGES[name]
    empty = torch.zeros(5, 0), torch.arange(5), torch.zeros(0)
    assert called(rule, empty).vector.shape == (0,)
    single = torch.randn(4, 6), torch.arange(4), torch.randn(6)
    assert called(rule, single).vector.dtype == torch.float32


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


@few
@given(cohorts())
def test_fltrust_follows_algorithm_2(cohort):
    rows, _, own = (part.numpy() for part in cohort)
    trust = [max(cosine(row, own), 0) for row in rows]
    scaled = [np.linalg.norm(own) / np.linalg.norm(row) * row for row in rows]
    found = called(ON_CHANGES["fltrust"], cohort)
    assert found.used.tolist() == [t > 0 for t in trust]
    if any(trust):
        expected = sum(t * row for t, row in zip(trust, scaled, strict=True)) / sum(trust)
        np.testing.assert_allclose(found.vector, expected, rtol=1e-9, atol=1e-12)


@few
@given(cohorts(), st.floats(1e-3, 1e12))
def test_fltrust_is_never_longer_than_the_servers_own_change(cohort, far):
    rows, clients, own = cohort
    found = called(ON_CHANGES["fltrust"], (far * rows, clients, own))
    assert float(found.vector.norm()) <= float(own.norm()) * (1 + 1e-9)


@pytest.mark.parametrize("rows", [torch.zeros(3, 4), -torch.ones(3, 4)])
def test_fltrust_may_trust_nobody(rows):
    found = called(ON_CHANGES["fltrust"], (rows, torch.arange(3), torch.ones(4)))
    assert not found.used.any()
    assert found.vector.tolist() == [0, 0, 0, 0]


def by_foolsgold(history, confidence):
    """Weights by the paper's Algorithm 1, in loops."""
    num = len(history)
    similar = np.array([[cosine(a, b) for b in history] for a in history])
    np.fill_diagonal(similar, 0)
    highest = similar.max(axis=1)
    for k in range(num):
        for j in range(num):
            if j != k and highest[j] > highest[k]:
                similar[k, j] *= highest[k] / highest[j]
    weight = np.clip(1 - similar.max(axis=1), 0, 1)
    weight = weight / weight.max()
    with np.errstate(divide="ignore"):
        weight = confidence * (np.log(weight / (1 - weight)) + 0.5)
    return np.clip(weight, 0, 1)


@few
@given(cohorts())
def test_foolsgold_follows_algorithm_1_with_histories_of_the_last_layer(cohort):
    rows, clients, _ = cohort
    rule, half = ON_CHANGES["foolsgold"], rows.shape[1] // 2
    first = called(rule, cohort)
    second = 2 * rows.roll(1, 0)
    found = called(rule, (second, clients, None), first.memory)
    history = rows + second
    torch.testing.assert_close(found.memory["history"][clients], history[:, half:])
    weight = by_foolsgold(history[:, half:].numpy(), 1.0)
    assert found.used.tolist() == (weight > 0).tolist()
    expected = weight @ second.numpy() / weight.sum()
    np.testing.assert_allclose(found.vector, expected, rtol=1e-6, atol=1e-9)


def test_foolsgold_leaves_out_clients_that_send_the_same():
    honest = torch.eye(4, 6).double()
    sybils = torch.full((3, 6), -1.0).double() * torch.tensor([[1.0], [2.0], [9.0]])
    rows = torch.cat([sybils, honest])
    rows[:, 3:] = rows[:, :3].clone()
    rows[6] += torch.arange(6.0)
    found = called(ON_CHANGES["foolsgold"], (rows, torch.arange(7), None))
    assert found.used.tolist() == [False] * 3 + [True] * 4
    same = rows[:1].repeat(5, 1)
    assert not called(ON_CHANGES["foolsgold"], (same, torch.arange(5), None)).used.any()


@few
@given(cohorts(), st.floats(0.1, 10), st.integers(1, 4))
def test_centered_clipping_follows_its_equation(cohort, radius, iterations):
    rule = centered_clipping(radius=radius, iterations=iterations)
    center = cohort[2].numpy()
    found = called(rule, cohort, {"center": cohort[2]})
    for _ in range(iterations):
        steps = [row - center for row in cohort[0].numpy()]
        clipped = [step * min(1, radius / np.linalg.norm(step)) for step in steps]
        center = center + np.mean(clipped, axis=0)
    np.testing.assert_allclose(found.vector, center, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.memory["center"], found.vector)


@few
@given(cohorts(), st.floats(1e3, 1e30))
def test_no_client_moves_the_clipped_center_farther_than_its_share(cohort, far):
    rows, clients, own = cohort
    rule = centered_clipping(radius=2.0, iterations=1)
    found = called(rule, cohort, {"center": own}).vector
    attacked = torch.cat([torch.full_like(rows[:1], far), rows[1:]])
    other = called(rule, (attacked, clients, own), {"center": own}).vector
    assert float((found - other).norm()) <= 2 * 2.0 / len(rows) + 1e-9
    same = called(rule, (own[None].repeat(4, 1), clients[:4], own), {"center": own}).vector
    torch.testing.assert_close(same, own)


@few
@given(cohorts(min_clients=3), st.floats(1e-30, 1e30))
def test_a_majority_of_signs_wins_however_loud_the_others_are(cohort, far):
    rows, _, _ = cohort
    found = called(sign_majority(step=0.1), cohort).vector.numpy()
    votes = np.sign(rows.numpy()).sum(axis=0)
    np.testing.assert_allclose(found, 0.1 * np.sign(votes))
    num_bad = (len(rows) - 1) // 2
    agreed = torch.cat([torch.full_like(rows[:num_bad], -far), rows[num_bad:].abs() + 0.1])
    assert (called(sign_majority(step=0.1), (agreed, None, None)).vector == 0.1).all()


RULES = {**ROBUST, **ON_CHANGES}


def tied_rows(rng, dtype):
    """Changes [9, D], some of which are each other's duplicates and opposites."""
    rows = tied(rng, (9, rng.integers(2, 12)), dtype)
    copies, opposites = rng.choice(9, (2, 2))
    rows[copies] = rows[copies[0]]
    rows[opposites[1]] = -rows[opposites[0]]
    return rows


# The others choose nothing, or as one of these does.
CHOOSING = [
    name
    for name in RULES
    if name not in {"geometric_median", "centered_clipping", "bulyan", "multi_krum"}
]


@pytest.mark.parametrize("name", others_slow(RULES, CHOOSING))
@settings(max_examples=25)
@given(generators(), st.sampled_from([np.float32, np.float64]), st.booleans())
def test_uploads_that_differ_by_rounding_are_combined_to_the_same(name, rng, dtype, around_zero):
    rows = tied_rows(rng, dtype)
    # A change of the last layer that is zero but for rounding has no direction.
    assume(name != "foolsgold" or rows[:, rows.shape[1] // 2 :].any(axis=1).all())
    if name in ROBUST and not around_zero:
        rows += 3
    clients = torch.from_numpy(rng.permutation(NUM_CLIENTS)[: len(rows)])
    own = torch.from_numpy(rng.standard_normal(rows.shape[1]).astype(dtype))
    first, second = (
        called(RULES[name], (torch.from_numpy(seen), clients, own))
        for seen in (rows, np.stack([rounded_otherwise(row, rng) for row in rows]))
    )
    assert second.used.tolist() == first.used.tolist()
    atol = 1e-5 * float(np.abs(rows).max()) + 1e-30
    torch.testing.assert_close(second.vector, first.vector, rtol=0, atol=atol)


HUGE = [1e18, 1e30, torch.finfo(torch.float32).max, 1e160, torch.finfo(torch.float64).max]
SHAPES = {"all": [1.0] * 6, "some": [-1.0, 1.0] * 3, "one": [1.0] + [0.0] * 5}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_huge_upload_neither_wins_nor_spoils_the_others(name, shape):
    """Where squares of its numbers overflow, too, and in the round after it."""
    for far, dtype in product(HUGE, (torch.float32, torch.float64)):
        if far <= torch.finfo(dtype).max:
            assert_harmless(name, shape, far, dtype)


def assert_harmless(name, shape, far, dtype):
    rng, rule = np.random.default_rng(0), RULES[name]
    honest = torch.from_numpy(rng.standard_normal((8, 6))).to(dtype) + 1
    shift = torch.tensor(SHAPES[shape], dtype=dtype)
    clients, own = torch.arange(9), honest.mean(dim=0)
    far_rows, near_rows = (torch.cat([size * shift[None], honest]) for size in (far, 1e6))
    first = called(rule, (far_rows, clients, own))
    found = [first, called(rule, (far_rows, clients, own), first.memory)]
    near = called(rule, (near_rows, clients, own))
    for after in found:
        assert after.vector.isfinite().all()
        assert all(leaf.isfinite().all() for leaf in after.memory.values())
        if name == "foolsgold":  # knows directions only, so that it may trust who is alone
            assert after.used.tolist() == near.used.tolist()
        else:
            assert float(after.vector.norm()) <= 2 * float(honest.norm(dim=1).max())
        if "krum" in name:
            assert not after.used[0]
