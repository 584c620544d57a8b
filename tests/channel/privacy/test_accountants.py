"""Epsilon: checked against another library, published numbers, and what must hold for any."""

import math
import warnings

import pytest
from option_classes import called
from sampling import others_slow, rotating

from flfast.channel.privacy.accountants import (
    central_epsilon,
    composed_gaussian,
    fixed_size_sampled,
    library,
    poisson_sampled,
)
from flfast.channel.privacy.budget import Budget, calibrated
from flfast.channel.privacy.participation import Participation
from flfast.zoo.channel.privacy.dp_ftrl import DpFtrl

DELTA = 1e-5
SECOND_OPINION = {"rdp": "RDPAccountant", "pld": "PRVAccountant"}


CASES = [(0.01, 1.0, 1000), (0.5, 3.0, 30), (0.001, 0.6, 1500)]
TUTORIAL = [(1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)]


@pytest.mark.parametrize(("rate", "multiplier", "rounds"), others_slow(CASES, CASES[:1]))
@pytest.mark.parametrize("accountant", SECOND_OPINION)
def test_two_libraries_agree(accountant, rate, multiplier, rounds):
    from opacus import accountants

    second = getattr(accountants, SECOND_OPINION[accountant])()
    second.history = [(multiplier, rate, rounds)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # divisions by zero that it masks
        expected = second.get_epsilon(DELTA)
    found = poisson_sampled(multiplier, DELTA, rate, accountant)(rounds)
    assert found == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("multiplier", "epochs", "published"), others_slow(TUTORIAL, TUTORIAL[:1])
)
def test_table_of_tensorflow_privacy(multiplier, epochs, published):
    """MNIST tutorial, batch 256 of 60,000; its conversion from RDP is an older, looser one."""
    rounds = epochs * 60_000 // 256
    rdp, pld = (
        poisson_sampled(multiplier, DELTA, 256 / 60_000, accountant)(rounds)
        for accountant in ("rdp", "pld")
    )
    assert 0.7 * published < pld < rdp < published
    dp_accounting = library()
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    event = dp_accounting.GaussianDpEvent(multiplier)
    orders = [1 + tenth / 10 for tenth in range(1, 200)]
    classic = dp_accounting.rdp.RdpAccountant(orders, relation).compose(
        dp_accounting.PoissonSampledDpEvent(256 / 60_000, event), rounds
    )
    pairs = zip(classic.orders, classic.rdp, strict=True)
    converted = min(loss - math.log(DELTA) / (order - 1) for order, loss in pairs)
    assert converted == pytest.approx(published, abs=0.01)


def test_the_gaussian_mechanism_alone():
    """Balle, Wang 2018: with noise of 1 at delta 1e-5, epsilon is 4.3772, by their Theorem 8."""

    def delta_of(epsilon):
        def below(x):
            return math.erfc(-x / math.sqrt(2)) / 2

        return below(0.5 - epsilon) - math.exp(epsilon) * below(-0.5 - epsilon)

    found = composed_gaussian(1.0, DELTA, float)
    assert found(1) == pytest.approx(4.3772, abs=1e-4)
    assert delta_of(found(1)) == pytest.approx(DELTA)
    assert found(0) == 0
    assert composed_gaussian(2.0, DELTA, float)(4) == pytest.approx(found(1))


def test_fixed_size():
    """Replacing a client moves the sum by 2 C; sampling helps, but not for large cohorts."""
    small, large = (
        fixed_size_sampled(2.0, DELTA, Participation("fixed", 1000, size, size))
        for size in (10, 900)
    )
    plain = composed_gaussian(1.0, DELTA, float)
    assert small(20) < plain(20) / 3
    assert large(20) == plain(20)
    everybody = Participation("fixed", 1000, 1000, 1000)
    assert fixed_size_sampled(2.0, DELTA, everybody)(20) == plain(20)
    # A looser form of Theorem 9 of Wang et al. 2019, written out for one round.
    rate, bounds = 0.01, []
    for order in range(2, 30):
        terms = (
            2 * math.comb(order, j) * rate**j * math.exp((j - 1) * j / 2)
            for j in range(2, order + 1)
        )
        loss = 20 * math.log1p(sum(terms)) / (order - 1)
        bounds.append(loss + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1))
    assert 0.3 * min(bounds) < small(20) <= min(bounds)


def test_turns_count_participation_only():
    epsilon = central_epsilon(3.0, DELTA, Participation("cyclic", 10, 3, 3), "rdp")
    plain = composed_gaussian(3.0, DELTA, float)
    assert [epsilon(r) for r in (0, 1, 3, 4, 7, 10)] == [plain(n) for n in (0, 1, 1, 2, 3, 3)]


def test_tree_aggregation_agrees_with_the_librarys_event():
    """Two passes of 6 rounds; RDP exceeds the exact epsilon of the same Gaussians."""
    dp_accounting = library()
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(4.0, 6)
    expected = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation).compose(event, 2)
    noise = {"clip_norm": 1.0, "noise_multiplier": 4.0, "epsilon": None, "delta": DELTA}
    turns = {"participation": Participation("cyclic", 6, 1, 1), "rounds": 12}
    tree = {"mechanism": "tree", "bands": None}
    found = called(DpFtrl, **noise, max_epsilon=None, secure=False, **tree, **turns).epsilon
    assert 0.8 * expected.get_epsilon(DELTA) < found(12) <= expected.get_epsilon(DELTA)
    plain = composed_gaussian(4.0, DELTA, float)
    assert [found(r) for r in (1, 2, 3, 4, 6, 7)] == [plain(n) for n in (1, 2, 2, 3, 3, 4)]


KINDS = [
    Participation("poisson", 1000, 20, 20),
    Participation("fixed", 1000, 20, 20),
    Participation("cyclic", 1000, 20, 20),
]


@pytest.mark.parametrize(
    "who",
    [
        pytest.param(who, id=who.kind, marks=[pytest.mark.slow] * (who.kind == "fixed"))
        for who in KINDS
    ],
)
def test_monotone(who):
    def epsilon(rounds=100, multiplier=1.5, cohort=20):
        return central_epsilon(multiplier, DELTA, who._replace(cohort=cohort), "rdp")(rounds)

    assert 0 == epsilon(rounds=0) < epsilon(rounds=1) < epsilon() < epsilon(rounds=1000)
    assert epsilon(multiplier=2.5) < epsilon()
    assert epsilon(cohort=5) < epsilon()


# The search for the noise is the same for each kind; that of `fixed` takes longest.
@pytest.mark.parametrize(
    ("who", "budget"),
    rotating(KINDS, [0.5, 8.0], every=3, name=lambda value: getattr(value, "kind", str(value))),
)
def test_calibrated_noise_spends_the_budget(who, budget):
    def make_epsilon(multiplier):
        return central_epsilon(multiplier, DELTA, who, "rdp")

    spent = make_epsilon(calibrated(make_epsilon, budget=budget, rounds=50))(50)
    assert 0.99 * budget < spent <= budget


def test_budgets_that_cannot_be_met():
    def make_epsilon(multiplier):
        return composed_gaussian(multiplier, DELTA, float)

    with pytest.raises(ValueError, match=r"privacy.epsilon=1e\+07 needs next to no noise"):
        calibrated(make_epsilon, budget=1e7, rounds=1)
    with pytest.raises(ValueError, match=r"privacy.epsilon=1 cannot be met by any noise"):
        calibrated(lambda multiplier: lambda rounds: 2.0, budget=1.0, rounds=1)


@pytest.mark.parametrize(("budget", "most"), [(1, 1), (3.2, 3), (5, None), (9, None)])
def test_most_rounds(budget, most):
    options = {"clip_norm": 1.0, "noise_multiplier": 1.0, "epsilon": None, "delta": DELTA}
    assert Budget(**options, max_epsilon=budget).spending(lambda z: float, 5).rounds == most
