"""Claims: what holds, by how much the others miss, and which seeds count."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.zoo.commands.conformance.judging import Judgement, judge
from flfast.zoo.commands.conformance.row_files import ROWS, ConformanceRow, read_row

BASE = read_row(ROWS / "closed_form_fedavg.yaml").model_dump()
VALUES = st.floats(0.01, 100)
LIMITS = st.sampled_from(
    [{"tolerance": 0.5}, {"above": 0.5}, {"below": 0.5}, {"factor": [0.5, 2]}]
)


LATE = [(0.5, 2.0), (2.0, 0.5), (0.5, 0.5)]
"""Accuracies of both variants, of which those below 1 do not reach the target."""


def row(claim, *, measure="last", variants=("a", "b"), seeds=(0,)):
    read = {"column": "local/loss", "measure": measure, "target": 1.0}
    changed = {"variants": {name: {} for name in variants}, "read": read, "seeds": list(seeds)}
    return ConformanceRow(**{**BASE, **changed, "claims": [{"of": "a", **claim}]})


def histories(**values):
    """One row of `metrics.csv` for each seed of each variant."""
    return {
        name: {seed: [{"round": 1, "local/loss": v}] for seed, v in enumerate(per_seed)}
        for name, per_seed in values.items()
    }


def found(claim, a, b=(1.0,), **options):
    judged = row(claim, seeds=range(len(a)), **options)
    return judge(judged, histories(a=a, b=b))[0]


@given(value=VALUES, reference=VALUES, limit=LIMITS)
def test_a_miss_is_the_least_change_of_the_value_that_makes_the_claim_hold(
    value, reference, limit
):
    claim = {"published": reference, **limit}
    miss = found(claim, [value]).miss
    assert miss >= 0
    if miss > 1e-9:
        ends = [found(claim, [value + sign * miss * 1.001]).miss for sign in (-1, 1)]
        assert min(ends) <= 1e-9 * reference
        assert min(found(claim, [value + s * miss * 0.9]).miss for s in (-1, 1)) > 0


@given(a=VALUES, b=VALUES, limit=LIMITS)
def test_another_variant_is_judged_as_a_number_would_be(a, b, limit):
    by_number = found({"published": b, **limit}, [a])
    by_variant = found({"than": "b", **limit}, [a], [b])
    assert (by_number.miss, by_number.value, by_number.reference) == (
        by_variant.miss,
        by_variant.value,
        by_variant.reference,
    )


@given(a=st.lists(VALUES, min_size=3, max_size=3), b=st.lists(VALUES, min_size=3, max_size=3))
def test_of_each_seed_the_worst_one_counts(a, b):
    claim = {"than": "b", "above": 0.5, "each": True}
    alone = [found(claim, [x], [y]).miss for x, y in zip(a, b, strict=True)]
    assert found(claim, a, b).miss == max(alone)
    mean = found({**claim, "each": False}, a, b)
    assert mean.value == pytest.approx(sum(a) / 3)
    assert mean.miss <= max(alone) + 1e-9


def test_what_was_not_measured_misses_altogether():
    finding = found({"published": 1, "tolerance": 1}, [math.nan])
    assert (finding.holds, finding.miss) == (False, math.inf)
    judgement = Judgement(row({"published": 1, "tolerance": 1}), [finding])
    assert judgement.verdict == "misses altogether: a is 1 ± 1"


def test_a_target_that_only_the_other_variant_misses_is_in_favour():
    claim = {"than": "b", "factor": [0, 0.5]}
    assert found(claim, [2.0], [0.5], measure="rounds").holds
    assert not found(claim, [0.5], [2.0], measure="rounds").holds
    assert not found(claim, [0.5], [0.5], measure="rounds").holds
    later = {"than": "b", "above": 1}
    assert [found(later, [a], [b], measure="rounds").holds for a, b in LATE] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        ({"published": 87, "factor": [0, 1.25]}, "a is 0 to 1.25 times 87"),
        ({"than": "b", "above": 0.05, "each": True}, "a is above b by 0.05, each seed"),
        ({"than": "b", "below": 0}, "a is below b"),
    ],
)
def test_a_claim_in_words(claim, text):
    assert found(claim, [1.0]).text == text


def test_verdicts():
    one = row({"published": 1, "tolerance": 0.25})
    close, far = ([found({"published": 1, "tolerance": 0.25}, [v])] for v in (1.25, 2.0))
    said = [
        Judgement(one, close),
        Judgement(one, far),
        Judgement(one, reason="needs x"),
        Judgement(one, reason="a, seed 0: killed", failed=True),
    ]
    assert [(each.verdict, each.holds) for each in said] == [
        ("holds", True),
        ("misses by 0.75: a is 1 ± 0.25", False),
        ("not run: needs x", None),
        ("failed: a, seed 0: killed", False),
    ]
