"""Secure aggregation gives the plain sum, and shows the server nothing else."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.channel.secure.masks import masks
from flfast.channel.secure.round_terms import ShortageError
from flfast.channel.secure.secure import none

DEFAULTS = {
    "bits": 32,
    "max_change": 4.0,
    "precision": 1e-6,
    "max_weight": None,
    "threshold": 0.6,
    "neighbors": None,
}


def round_of(cohort, *, seed=0, path=(1, 0), **options):
    make_round = masks(**{**DEFAULTS, **options}).make_round
    assert make_round is not None
    return make_round(cohort, seed, path)


@dataclass
class Case:
    """A cohort, its vectors [K, D] and [K, W], and the clients that arrive, in some order."""

    cohort: list
    values: np.ndarray
    wide: np.ndarray
    arrived: list
    options: dict


@st.composite
def cases(draw):
    num = draw(st.integers(2, 9))
    cohort = draw(st.lists(st.integers(0, 2**31 - 1), min_size=num, max_size=num, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    threshold = draw(st.sampled_from([0.3, 0.6, 1.0]))
    # With all others as neighbours, this many suffice.
    least = max(2, math.ceil(threshold * num - 1e-9))
    arrived = draw(st.permutations(cohort))[: draw(st.integers(least, num))]
    return Case(
        cohort,
        rng.uniform(-4, 4, (num, draw(st.integers(0, 12)))),
        rng.integers(0, 2**31, (num, draw(st.integers(1, 3)))).astype(np.float64),
        arrived,
        {"threshold": threshold, "bits": draw(st.sampled_from([32, 33, 48, 62]))},
    )


@settings(max_examples=12, deadline=None)
@given(cases(), st.integers(0, 9))
def test_the_sum_is_the_plain_sum_whoever_drops_out_and_wherever_it_is_added(case, cut):
    """Two ranks add what arrives in any order; each has a round object of its own."""
    ranks = [round_of(case.cohort, **case.options) for _ in range(2)]
    totals = [torch.zeros(case.values.shape[1] + case.wide.shape[1], dtype=torch.int64)] * 2
    for number, k in enumerate(case.arrived):
        rank, place = int(number >= cut), case.cohort.index(k)
        masked, clamped = ranks[rank].mask(k, case.values[place], case.wide[place])
        assert clamped == 0
        totals[rank] = totals[rank] + masked
    sums = [rank.unmask(sum(totals), case.arrived, case.wide.shape[1]) for rank in ranks]
    rows = [case.cohort.index(k) for k in case.arrived]
    for found in sums:
        assert np.abs(found.values - case.values[rows].sum(0)).max(initial=0) < 1e-6
        assert np.array_equal(found.wide, case.wide[rows].sum(0))


def test_a_weighted_mean_has_six_digits():
    """Weights from 1 to 100,000, a CNN's changes, a fifth of 50 clients drops out."""
    rng = np.random.default_rng(0)
    cohort, arrived = list(range(50)), list(range(10, 50))
    weights = rng.integers(1, 100_000, 50)
    changes = rng.normal(0, 0.3, (50, 200)).astype(np.float32)
    secure, total = round_of(cohort, neighbors=20, threshold=0.4), 0
    shares = weights / weights.max()
    for k in arrived:
        total = total + secure.mask(k, shares[k] * changes[k], weights[k : k + 1] * 1.0)[0]
    found = secure.unmask(total, arrived, num_wide=1)
    mean = found.values * weights.max() / found.wide[0]
    plain = np.average(changes[arrived].astype(np.float64), axis=0, weights=weights[arrived])
    assert np.abs(mean - plain).max() < 1e-7


@pytest.mark.parametrize(("num", "neighbors"), [(12, 6), (12, 5), (7, 6), (7, 40)])
def test_a_sparse_graph_gives_the_same_sum(num, neighbors):
    cohort, arrived = list(range(num)), list(range(1, num))
    secure, values = round_of(cohort, neighbors=neighbors), np.linspace(-1, 1, 5)
    total = sum(secure.mask(k, k * values / num, np.ones(1))[0] for k in arrived)
    found = secure.unmask(total, arrived, num_wide=1)
    assert np.abs(found.values - sum(arrived) * values / num).max() < 1e-6
    assert found.wide[0] == len(arrived)


def test_fewer_than_the_threshold_are_an_error():
    secure = round_of(range(10))
    total = sum(secure.mask(k, np.ones(3), np.ones(1))[0] for k in range(5))
    with pytest.raises(ShortageError, match="5 of 10 uploads arrived; 6 are needed"):
        secure.unmask(total, range(5), num_wide=1)


def test_too_few_neighbours_of_one_client_are_an_error():
    """Enough of the cohort arrived, but client 0's secret has too few holders left."""
    secure = round_of(range(12), neighbors=4, threshold=0.6)
    neighbors = secure.terms.graph[0]
    arrived = [k for k in range(12) if k not in neighbors[:2] and k]
    total = sum(secure.mask(k, np.ones(3), np.ones(1))[0] for k in arrived)
    with pytest.raises(ShortageError, match="2 clients with shares of client 0 arrived"):
        secure.unmask(total, arrived, num_wide=1)


@pytest.mark.parametrize("cohort", [[], [3]])
def test_the_sum_of_one_client_is_not_unmasked(cohort):
    secure, total = round_of(cohort), torch.zeros(3, dtype=torch.int64)
    for k in cohort:
        total = secure.mask(k, np.ones(2), np.ones(1))[0]
    with pytest.raises(ShortageError, match="2 are needed to remove the masks"):
        secure.unmask(total, cohort, num_wide=1)


@pytest.mark.parametrize("bits", [32, 40])
def test_a_masked_upload_is_uniform(bits):
    """Chi-square over 256 classes of the highest bits, for an upload of zeros."""
    masked, _ = round_of(range(5), bits=bits, neighbors=2).mask(2, np.zeros(50_000), np.zeros(9))
    high = (masked[:-9] >> (bits - 8)).numpy()
    assert masked.min() >= 0
    counts = np.bincount(high, minlength=256)
    expected = len(high) / 256
    assert len(counts) == 256
    assert ((counts - expected) ** 2 / expected).sum() < 330.5  # 99.9 % at 255 degrees


def test_the_sum_of_some_uploads_is_still_masked():
    """Until the server gets the shares, no subset of uploads adds up to their plain sum."""
    secure, values = round_of(range(6)), np.full(200, 0.5)
    masked = [secure.mask(k, values, np.ones(1))[0] for k in range(6)]
    for num in range(1, 7):
        decoded = secure.terms.numbers.decode(sum(masked[:num])[:-1].numpy().view(np.uint64))
        assert (np.abs(decoded - num * values) < 1e-3).mean() < 0.02


def test_clients_answer_once():
    """A client that arrived, and is then said to have dropped out, would be unmasked."""
    secure = round_of(range(5))
    total = sum(secure.mask(k, np.ones(2), np.ones(1))[0] for k in range(5))
    first = secure.unmask(total, range(5), num_wide=1)
    again = secure.unmask(total, range(5), num_wide=1)
    assert np.array_equal(first.values, again.values)
    with pytest.raises(ValueError, match="answers once a round"):
        secure.unmask(total, range(4), num_wide=1)


def test_the_same_seed_round_and_call_give_the_same_masks_and_no_others():
    def masked(**changed):
        secure = round_of(range(4), **{"seed": 7, "path": (3, 0), **changed})
        return secure.mask(1, np.zeros(100), np.zeros(1))[0]

    assert torch.equal(masked(), masked())
    for changed in ({"seed": 8}, {"path": (4, 0)}, {"path": (3, 1)}, {"path": (3,)}):
        assert (masked() == masked(**changed)).float().mean() < 0.02


def test_large_changes_are_clamped_and_counted_and_large_counts_refused():
    secure, values = round_of(range(2)), np.array([5.0, -9.0, 3.0])
    masked, clamped = secure.mask(0, values, np.ones(1))
    assert clamped == 2
    total = masked + secure.mask(1, np.zeros(3), np.ones(1))[0]
    assert secure.unmask(total, [0, 1], num_wide=1).values.tolist() == [4.0, -4.0, 3.0]
    with pytest.raises(ValueError, match="client 1: 1 counts, sums or weights above"):
        secure.mask(1, values, np.array([2.0**31 + 1]))
    with pytest.raises(ValueError, match="client 2 is not in the cohort"):
        secure.mask(2, values, np.ones(1))
    with pytest.raises(ValueError, match="NaN"):
        secure.mask(1, values * np.nan, np.ones(1))


def test_bits_range_and_cohort_must_fit():
    check = masks(**{**DEFAULTS, "bits": 16}).check
    assert check is not None
    with pytest.raises(ValueError, match=r"secure.bits=16 .* 50 clients.* secure.bits >= 28,"):
        check(50)
    masks(**{**DEFAULTS, "bits": 28}).check(50)
    impossible = masks(**{**DEFAULTS, "max_change": 1e18})
    with pytest.raises(ValueError, match="allowed: a smaller max_change"):
        impossible.check(2)
    with pytest.raises(ValueError, match="largest cohort has 1 client"):
        check(1)


@pytest.mark.parametrize(("bits", "num"), [(32, 100), (29, 101), (62, 7)])
def test_traffic_is_what_messages_take(bits, num):
    """Public keys, encrypted shares, the packed vector, and shares for the server."""
    secure = round_of(range(6), bits=bits, neighbors=4)
    masked, _ = secure.mask(2, np.zeros(num), np.zeros(3))
    unpacked = masked[:-3].numpy()[:, None] >> np.arange(bits) & 1
    packed = np.packbits(unpacked.astype(np.uint8)).tobytes() + masked[-3:].numpy().tobytes()
    found, participant = secure.terms.traffic(num, num_wide=3), secure._participants[2]
    shares = secure._messages[2].values()
    answers = participant.answer(range(6)).values()
    keys = 32 + 32
    named = sum(4 + len(message) for message in [*shares, *answers])
    assert found.up == keys + len(packed) + named
    assert found.down == 4 * (4 + keys) + sum(4 + len(message) for message in shares) + 1


def test_none_sends_in_the_clear():
    assert none().make_round is None
