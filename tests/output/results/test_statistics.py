import math

import numpy as np
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st

from flfast.output.results.statistics import (
    FEWEST_FOR_BOOTSTRAP,
    compare_all,
    holm,
    mean_interval,
    paired_test,
)

VALUES = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))
SEEDS = st.lists(VALUES, min_size=3, max_size=12)
PROBABILITIES = st.lists(st.floats(0, 1), max_size=8)


@given(SEEDS)
def test_few_seeds_have_students_interval(values):
    assume(np.ptp(values) > 0)
    found = mean_interval(values)
    expected = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values)
    )
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found.num == len(values)


def test_many_seeds_have_the_bca_bootstrap():
    values = np.random.default_rng(3).exponential(size=FEWEST_FOR_BOOTSTRAP)
    found = mean_interval(values.tolist())
    expected = scipy.stats.bootstrap(
        (values,), np.mean, method="BCa", random_state=np.random.default_rng(0)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found == mean_interval(values.tolist())


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, 2.0, math.nan]])
def test_two_seeds_are_too_few_for_an_interval(values):
    found = mean_interval(values)
    assert found.num == sum(map(math.isfinite, values))
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_the_interval_of_an_accuracy_is_cut_to_what_is_possible():
    found = mean_interval([0.9, 0.99, 1.0], (0.0, 1.0))
    assert found.high == 1.0
    assert found.low == mean_interval([0.9, 0.99, 1.0]).low


@given(st.lists(st.tuples(VALUES, VALUES), min_size=3, max_size=10))
def test_the_paired_test_is_scipys(pairs):
    first, second = ([pair[n] for pair in pairs] for n in (0, 1))
    differences = np.subtract(first, second)
    assume(np.ptp(differences) > 1e-6)
    by_seed = [{str(seed): value for seed, value in enumerate(side)} for side in (first, second)]
    by_seed[0]["of no common seed"] = 1e6
    found, p = paired_test(*by_seed)
    assert p == pytest.approx(scipy.stats.ttest_rel(first, second).pvalue)
    assert found.mean == pytest.approx(differences.mean(), abs=1e-9)
    # The interval of the difference contains zero just if the test does not reject.
    if abs(p - 0.05) > 1e-6:
        assert (found.low <= 0 <= found.high) == (p > 0.05)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"0": 0.9, "1": 0.8}, {"0": 0.5, "1": 0.5}),
        ({"0": 0.9, "1": 0.8, "2": 0.7}, {"3": 0.9, "4": 0.8, "5": 0.7}),
        ({"0": 0.3, "1": 0.2, "2": 0.1}, {"0": 0.2, "1": 0.1, "2": 0.0}),
    ],
    ids=["two seeds", "other seeds", "equal differences"],
)
def test_what_cannot_be_tested_has_no_p_value(first, second):
    assert math.isnan(paired_test(first, second)[1])


def test_holm_on_known_examples():
    """Four p-values whose adjusted ones R prints for p.adjust(p, "holm")."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9, math.nan]) == pytest.approx([1.0, 1.0, math.nan], nan_ok=True)
    assert holm([]) == []


@given(PROBABILITIES, st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values, level):
    adjusted = holm(p_values)
    rejected = set()
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] * (len(p_values) - rank) > level:
            break
        rejected.add(place)
    assert {n for n, p in enumerate(adjusted) if p <= level} == rejected
    assert all(p <= corrected <= 1 for p, corrected in zip(p_values, adjusted, strict=True))


def test_all_pairs_are_compared_and_corrected_together():
    seeds = np.random.default_rng(1).normal(scale=0.003, size=(3, 5))
    means = {"worst": 0.7, "best": 0.9, "middle": 0.8}
    values = {
        name: {str(n): mean + float(noise) for n, noise in enumerate(row)}
        for (name, mean), row in zip(means.items(), seeds, strict=True)
    }
    found = compare_all(values)
    assert {(c.higher, c.lower) for c in found} == {
        ("best", "worst"),
        ("best", "middle"),
        ("middle", "worst"),
    }
    assert all(c.certain and c.difference.low > 0 for c in found)
    for c in found:
        raw = scipy.stats.ttest_rel(
            [*values[c.higher].values()], [*values[c.lower].values()]
        ).pvalue
        assert c.p == pytest.approx(raw)
        assert c.p < c.adjusted <= 3 * c.p or c is found[-1]
