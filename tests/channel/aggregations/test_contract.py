"""Properties of every aggregation rule, and each rule against its definition."""

import numpy as np
import pytest
import torch
from adversaries import ON_CHANGES, ROBUST
from hydra.utils import instantiate
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from flfast.channel.aggregations.geometric_median import geometric_median
from flfast.channel.aggregations.krum import krum, multi_krum
from flfast.channel.aggregations.trimmed_mean import trimmed_mean
from flfast.state.row_statistics import distances, squared_distances, trimmed_mean_of_rows
from flfast.zoo.channel.aggregations.bulyan import bulyan

AVERAGING = ("median", "trimmed_mean", "geometric_median")
every = pytest.mark.parametrize("name", ROBUST)
few = settings(max_examples=15)


def combined(name, rows, weights=None):
    weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights
    return ROBUST[name].combine(rows, weights)


@st.composite
def cohorts(draw, min_clients=7, max_clients=12):
    """Uploads [K, D] around a common mean, and weights [K]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num, width = draw(st.integers(min_clients, max_clients)), draw(st.integers(1, 20))
    rows = rng.standard_normal((num, width)) + 3 * rng.standard_normal(width)
    return torch.from_numpy(rows), torch.from_numpy(rng.integers(1, 50, num).astype(float))


def test_every_yaml_of_the_group_is_tested(root):
    options = {path.stem for path in (root / "conf" / "aggregation").glob("*.yaml")}
    assert options == {"mean", *ROBUST, *ON_CHANGES}
    for option in options:
        config = OmegaConf.load(root / "conf" / "aggregation" / f"{option}.yaml")
        assert instantiate(config).name == option


@every
@few
@given(cohorts(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(name, cohort, random):
    rows, weights = cohort
    order = list(range(len(rows)))
    random.shuffle(order)
    found, other = combined(name, rows, weights), combined(name, rows[order], weights[order])
    torch.testing.assert_close(other.vector, found.vector, rtol=1e-6, atol=1e-7)
    assert other.used.tolist() == found.used[order].tolist()


@every
@few
@given(cohorts(), st.floats(-10, 10), st.floats(0.1, 10))
def test_shifting_and_scaling_all_uploads_shifts_and_scales_the_result(name, cohort, shift, scale):
    rows, weights = cohort
    found = combined(name, rows, weights).vector
    moved = combined(name, scale * rows + shift, weights).vector
    torch.testing.assert_close(moved, scale * found + shift, rtol=1e-6, atol=1e-6)


@every
@few
@given(cohorts(min_clients=1, max_clients=1).map(lambda cohort: cohort[0]), st.integers(7, 9))
def test_equal_uploads_give_the_same_upload(name, row, num):
    torch.testing.assert_close(combined(name, row.repeat(num, 1)).vector, row[0])


@pytest.mark.parametrize("name", AVERAGING)
def test_a_single_upload_is_the_result(name):
    rows = torch.randn(1, 7)
    found = combined(name, rows)
    torch.testing.assert_close(found.vector, rows[0])
    assert found.used.tolist() == [True]
    assert found.vector.dtype == torch.float32


@every
@few
@given(cohorts(), st.floats(1e3, 1e30), st.data())
def test_a_distant_minority_does_not_move_the_result_away_from_the_others(name, cohort, far, data):
    honest, _ = cohort
    # Krum and Bulyan tolerate num_byzantine=1; the others tolerate any minority.
    most = 1 if "krum" in name or name == "bulyan" else len(honest) - 1
    num = data.draw(st.integers(1, most))
    bad = torch.full((num, honest.shape[1]), far, dtype=torch.float64)
    if data.draw(st.booleans()):
        bad *= torch.linspace(1, -1, num)[:, None]
    if name == "trimmed_mean":  # trim=0.45
        assume(num <= 0.45 * (len(honest) + num))
    found = combined(name, torch.cat([bad, honest]))
    centre = honest.mean(dim=0)
    radius = float((honest - centre).norm(dim=1).max())
    error = float((found.vector - centre).norm())
    if "krum" in name:
        assert not found.used[0]
        assert error <= radius + 1e-9
    elif name == "geometric_median":
        # Minsker 2015, lemma 2.1, for this share of bad rows.
        share = num / (num + len(honest))
        assert error <= 2 * (1 - share) / (1 - 2 * share) * radius * 1.01 + 1e-6
    else:
        assert (found.vector >= honest.min(dim=0).values - 1e-9).all()
        assert (found.vector <= honest.max(dim=0).values + 1e-9).all()


@few
@given(cohorts(min_clients=1))
def test_the_median_equals_that_of_numpy(cohort):
    rows, weights = cohort
    np.testing.assert_allclose(combined("median", rows, weights).vector, np.median(rows, axis=0))


@few
@given(cohorts(min_clients=1), st.floats(0, 0.49))
def test_the_trimmed_mean_equals_that_of_sorted_columns(cohort, trim):
    rows, weights = cohort
    cut = min(int(np.ceil(trim * len(rows) - 1e-9)), (len(rows) - 1) // 2)
    expected = np.sort(rows.numpy(), axis=0)[cut : len(rows) - cut].mean(axis=0)
    found = trimmed_mean(trim=trim).combine(rows, weights).vector
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    if not trim:
        np.testing.assert_allclose(found, rows.mean(dim=0))


def test_trim_is_not_rounded_up_by_a_floating_point_error():
    rows = torch.arange(15.0)[:, None] ** 2
    weights = torch.ones(15, dtype=torch.float64)
    expected = trimmed_mean_of_rows(rows, 3)
    assert trimmed_mean(trim=0.2).combine(rows, weights).vector == expected


def scores(rows, num_byzantine):
    """Krum's scores by their definition."""
    rows, found = rows.numpy(), []
    for k, row in enumerate(rows):
        others = sorted(((row - o) ** 2).sum() for j, o in enumerate(rows) if j != k)
        found.append(sum(others[: len(rows) - num_byzantine - 2]))
    return np.array(found)


@few
@given(cohorts(min_clients=5), st.integers(0, 4), st.integers(1, 9))
def test_krum_selects_the_lowest_scores(cohort, num_byzantine, num_selected):
    rows, weights = cohort
    several = multi_krum(num_byzantine=num_byzantine, num_selected=num_selected)
    assume(len(rows) >= several.min_uploads)
    expected = scores(rows, num_byzantine)
    one = krum(num_byzantine=num_byzantine).combine(rows, weights)
    np.testing.assert_allclose(expected[one.used.numpy()], expected.min(), rtol=1e-9)
    torch.testing.assert_close(one.vector, rows[one.used][0])
    found = several.combine(rows, weights)
    assert int(found.used.sum()) == num_selected
    assert expected[found.used.numpy()].max() <= np.sort(expected)[num_selected - 1] * (1 + 1e-9)
    torch.testing.assert_close(found.vector, rows[found.used].mean(dim=0))


def by_bulyan(rows, num_byzantine):
    """Bulyan by its definition: (result, selected)."""
    rows, left = rows.numpy(), list(range(len(rows)))
    selected = []
    while len(selected) < len(rows) - 2 * num_byzantine:
        num_near = max(len(left) - num_byzantine - 2, 2)
        score = {
            k: sum(sorted(((rows[k] - rows[j]) ** 2).sum() for j in left if j != k)[:num_near])
            for k in left
        }
        selected.append(min(left, key=score.get))
        left.remove(selected[-1])
    chosen = rows[sorted(selected)]
    result = [
        np.mean(sorted(column, key=lambda v: abs(v - np.median(column)))[:num_kept])
        for column in chosen.T
        for num_kept in [len(chosen) - 2 * num_byzantine]
    ]
    return result, sorted(selected)


@few
@given(cohorts(min_clients=11, max_clients=13), st.integers(0, 2))
def test_bulyan_averages_around_the_median_of_what_krum_selects_again_and_again(cohort, number):
    rows, weights = cohort
    found = bulyan(num_byzantine=number).combine(rows, weights)
    expected, selected = by_bulyan(rows, number)
    assert found.used.nonzero().flatten().tolist() == selected
    np.testing.assert_allclose(found.vector, expected, rtol=1e-9, atol=1e-12)


def test_bulyan_says_how_many_uploads_it_needs():
    assert bulyan(num_byzantine=2).min_uploads == 11
    assert bulyan(num_byzantine=2).reason == "aggregation.num_byzantine=2 needs 11"
    assert bulyan(num_byzantine=None).reason == "aggregation.num_byzantine=null needs 7"


@pytest.mark.parametrize(("num", "most"), [(7, 1), (10, 1), (11, 2), (14, 2), (15, 3)])
def test_bulyan_tolerates_as_many_as_it_can(num, most):
    rows, weights = torch.randn(num, 4), torch.ones(num, dtype=torch.float64)
    found, expected = (bulyan(num_byzantine=f).combine(rows, weights) for f in (None, most))
    assert torch.equal(found.vector, expected.vector)


@few
@given(cohorts(min_clients=3))
def test_the_geometric_median_has_the_smallest_sum_of_distances(cohort):
    rows, weights = cohort
    found = geometric_median(iterations=300, eps=1e-9).combine(rows, weights).vector
    least = float(weights @ distances(rows, found))
    rng = np.random.default_rng(0)
    near = found + 1e-2 * torch.from_numpy(rng.standard_normal((20, rows.shape[1])))
    for other in (*rows, rows.mean(dim=0), *near):
        assert least <= float(weights @ distances(rows, other)) * (1 + 1e-4)


def test_rows_of_several_column_blocks_are_combined():
    rows = torch.randn(4, 40_000)
    np.testing.assert_allclose(combined("median", rows).vector, np.median(rows, axis=0))
    expected = torch.cdist(rows.double(), rows.double()) ** 2
    torch.testing.assert_close(squared_distances(rows), expected, rtol=1e-9, atol=1e-6)


@every
def test_empty_uploads_are_allowed(name):
    assert combined(name, torch.zeros(7, 0)).vector.shape == (0,)
