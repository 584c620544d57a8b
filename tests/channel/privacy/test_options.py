"""Options of privacy: what they promise, and what they refuse."""

import math
from functools import partial

import pytest
import torch
from option_classes import called

from flfast.channel.privacy.adaptive_clipping import AdaptiveClipping, sum_multiplier
from flfast.channel.privacy.central import Central
from flfast.channel.privacy.local import Local
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import none
from flfast.zoo.channel.privacy.dp_ftrl import DpFtrl

POISSON = Participation("poisson", 1000, 50, 45)
FIXED, CYCLIC = POISSON._replace(kind="fixed"), POISSON._replace(kind="cyclic")
OTHER = Participation("other", 1000, 50, 50, reason="sampler=by_size")
BUDGET = {
    "clip_norm": 0.5,
    "noise_multiplier": None,
    "epsilon": 4.0,
    "delta": 1e-5,
    "max_epsilon": None,
    "secure": False,
    "rounds": 20,
}
make_central = partial(
    called,
    Central,
    **BUDGET,
    accountant="rdp",
    adaptive_quantile=None,
    adaptive_lr=0.2,
    adaptive_count_std=None,
    noise_cohort=None,
    noise_population=None,
    participation=CYCLIC,
)
make_local = partial(called, Local, **BUDGET, participation=OTHER)
make_ftrl = partial(called, DpFtrl, **BUDGET, participation=CYCLIC, mechanism="tree", bands=None)
make_banded = partial(make_ftrl, mechanism="banded")
MAKERS = [make_central, make_local, make_ftrl, make_banded]
GIVEN = {"noise_multiplier": 2.0, "epsilon": None}


def test_none_does_nothing():
    assert none().clip_norm is None and none().central_noise is None and none().epsilon is None


@pytest.mark.parametrize("make", MAKERS)
def test_a_budget(make):
    privacy = make()
    assert 3.96 < privacy.epsilon(20) <= 4
    assert privacy.clip_norm == 0.5 and privacy.delta == 1e-5 and privacy.unit == "client"
    assert privacy.rounds is None
    assert (privacy.central_multiplier > 0) != (privacy.local_multiplier > 0)
    given = make(
        noise_multiplier=privacy.central_multiplier + privacy.local_multiplier, epsilon=None
    )
    assert given.epsilon(20) == privacy.epsilon(20)


@pytest.mark.parametrize("make", MAKERS)
def test_the_last_round_within_a_budget(make):
    make = partial(make, **GIVEN, participation=Participation("cyclic", 100, 50, 50))
    privacy = make()
    limit = (privacy.epsilon(6) + privacy.epsilon(7)) / 2
    stopped = make(max_epsilon=limit).rounds
    assert privacy.epsilon(stopped) <= limit < privacy.epsilon(stopped + 1)
    with pytest.raises(ValueError, match=r"privacy.max_epsilon=0.001: the first round spends"):
        make(max_epsilon=0.001)


@pytest.mark.parametrize("make", MAKERS)
def test_without_noise_and_bound_nothing_is_changed(make):
    privacy = make(clip_norm=None, noise_multiplier=0.0, epsilon=None)
    assert privacy.expected_clients is None and privacy.central_noise is None
    assert privacy.local_multiplier == privacy.central_multiplier == 0
    assert privacy.epsilon(0) == 0 and privacy.epsilon(1) == math.inf


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": 1.0}, "privacy.noise_multiplier=1.0 with privacy.epsilon=4.0"),
        ({"epsilon": None}, "privacy.noise_multiplier=null with privacy.epsilon=null"),
        ({"clip_norm": None}, "privacy.clip_norm=null: noise hides only what has a bound"),
    ],
)
def test_budgets_that_are_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_who_takes_part():
    def adjacency(who):
        return make_central(**GIVEN, participation=who).adjacency

    assert (adjacency(POISSON), adjacency(FIXED)) == ("add or remove", "replace")
    assert adjacency(CYCLIC) == make_ftrl().adjacency == "zero out"
    assert make_central().expected_clients == make_ftrl().expected_clients == 45
    with pytest.raises(ValueError, match="privacy=central with sampler=by_size: no accountant"):
        make_central(participation=OTHER)
    with pytest.raises(ValueError, match=r"privacy=dp_ftrl with poisson sampling.*sampler=cyclic"):
        make_ftrl(participation=POISSON)
    # Local noise is not amplified; only taking turns bounds how often a client takes part.
    multiplier = make_local().local_multiplier
    assert make_local(participation=POISSON).local_multiplier == multiplier
    assert make_local(participation=CYCLIC).local_multiplier < multiplier / 4


def test_noise_of_a_larger_deployment():
    """The noise's share of the mean is the deployment's: std / cohort is the same in both."""
    deployed = make_central(**GIVEN, participation=Participation("poisson", 10**6, 1000, 1000))
    simulated = make_central(**GIVEN, noise_cohort=1000, noise_population=10**6)
    assert simulated.central_multiplier / 50 == pytest.approx(deployed.central_multiplier / 1000)
    assert simulated.epsilon(20) == deployed.epsilon(20)
    assert "this run, with cohorts of 50 out of 1000, is less private" in simulated.warning
    with pytest.raises(
        ValueError, match="noise_cohort=2000 exceeds the population; allowed: 1 to"
    ):
        make_central(noise_cohort=2000)


def test_adaptive_clipping_costs_noise():
    """Sum and count together are one Gaussian mechanism with the multiplier of the budget."""
    plain, adaptive = make_central(**GIVEN), make_central(**GIVEN, adaptive_quantile=0.5)
    z, z_sum = plain.central_multiplier, adaptive.central_multiplier
    count_std = adaptive.adaptive.count_std
    assert count_std == 2 * z
    assert z_sum**-2 + count_std**-2 == pytest.approx(z**-2)
    assert adaptive.epsilon(20) == plain.epsilon(20)
    assert make_central(**{**GIVEN, "noise_multiplier": 0.0}, adaptive_quantile=0.5).adaptive == (
        *(0.5, 0.2, 0.0),
    )
    with pytest.raises(ValueError, match=r"adaptive_count_std=0.1 .* allowed: more than"):
        make_central(adaptive_quantile=0.5, adaptive_count_std=0.1)
    with pytest.raises(ValueError, match=r"adaptive_quantile=0.5 with privacy.clip_norm=null"):
        make_central(**{**GIVEN, "noise_multiplier": 0.0}, clip_norm=None, adaptive_quantile=0.5)
    assert sum_multiplier(1.0, 1e9, 1.0) == pytest.approx(1.0)


def released_of(norms, clip_norm):
    """Sum of clipped changes along a line, and the count, that a cohort releases."""
    clipped = sum(math.copysign(min(abs(norm), clip_norm), norm) for norm in norms)
    return clipped, sum((abs(norm) <= clip_norm) - 0.5 for norm in norms)


NEIGHBOURS = {  # a client's change -> those in its place in neighbouring data
    "add or remove": lambda norm: [[]],
    "replace": lambda norm: [[other] for other in (-9.0, -0.5, 0.0, 0.2, 0.5, 9.0)],
    "zero out": lambda norm: [[0.0]],
}


@pytest.mark.parametrize("participation", [POISSON, FIXED, CYCLIC], ids=lambda part: part.kind)
@pytest.mark.parametrize("count_std", [None, 7.0])
def test_sum_and_count_move_by_as_much_noise_as_the_accountant_counts(participation, count_std):
    """The farthest that neighbouring data move both, in units of their noise, is 1 / z.

    Only the sum is moved by 2 C if a client is replaced, for which the accountant takes z / 2.
    """
    made = make_central(
        **GIVEN,
        participation=participation,
        adaptive_quantile=0.5,
        adaptive_count_std=count_std,
    )
    clip_norm, z = made.clip_norm, GIVEN["noise_multiplier"]
    units = made.central_multiplier * clip_norm, made.adaptive.count_std
    moved = []
    for norm in (-9.0, -0.5, -0.2, 0.0, 0.3, 0.5, 9.0):
        here = released_of([norm, 0.1], clip_norm)
        for others in NEIGHBOURS[made.adjacency](norm):
            there = released_of([*others, 0.1], clip_norm)
            steps = ((a - b) / unit for a, b, unit in zip(here, there, units, strict=True))
            moved.append(math.hypot(*steps))
    times = 2 if made.adjacency == "replace" else 1
    assert max(moved) == pytest.approx(times / z, rel=1e-12)
    assert made.epsilon(20) == make_central(**GIVEN, participation=participation).epsilon(20)


def test_the_norm_follows_the_quantile():
    """With norms from 1 to 100, C goes to the norm that 30 % of them are below."""
    clipping = AdaptiveClipping(quantile=0.3, lr=0.2, count_std=1.0)
    norms, clip_norm = torch.arange(1.0, 101.0), 90.0
    rng, found = torch.Generator().manual_seed(0), []
    for _ in range(200):
        within = int((norms <= clip_norm).sum())
        noise = float(torch.randn((), generator=rng))
        share = clipping.noisy_share(within, 100, 100.0, noise)
        clip_norm = clipping.next_norm(clip_norm, share)
        found.append(clip_norm)
    assert sum(found[100:]) / 100 == pytest.approx(30, abs=2)
    assert clipping.noisy_share(40, 80, 100.0, 0.0) == 0.5


def test_participation():
    turns = Participation("cyclic", population=10, cohort=4, expected=3)
    assert [turns.most_rounds(r) for r in range(7)] == [0, 1, 1, 2, 2, 2, 3]
    assert turns.rounds_per_pass == 2 and turns.rate == 0.4
    assert POISSON.most_rounds(7) == 7
    assert Participation("cyclic", 5, 5, 5).rounds_per_pass == 1
