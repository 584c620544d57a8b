"""From the options of a privacy budget to noise and epsilon."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from scipy.optimize import brentq

from flfast.channel.privacy.accountants import Epsilon
from flfast.channel.privacy.participation import Participation
from flfast.state.options import Delta, NonNegative, Positive

_SMALLEST, _LARGEST = 2.0**-10, 2.0**30
_HUGE = 1e9
"""Stands for an epsilon that the accountant cannot express."""


class Spending(NamedTuple):
    """What a run spends.

    Attributes:
        multiplier: multiplier of the noise.
        epsilon: rounds done -> epsilon.
        rounds: most rounds within `max_epsilon`; None: all of the run.
    """

    multiplier: float
    epsilon: Epsilon
    rounds: int | None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The options that all mechanisms have.

    Attributes:
        clip_norm: C, bound on what the noise hides; None is none.
        noise_multiplier: z, multiplier of the noise; None finds the smallest one for `epsilon`.
        epsilon: budget of all rounds; None if the noise is given.
        delta: probability with which epsilon may be exceeded.
        max_epsilon: stop before the round in which it would be exceeded; None never stops.
    """

    clip_norm: Positive | None
    noise_multiplier: NonNegative | None
    epsilon: Positive | None
    delta: Delta
    max_epsilon: Positive | None

    def spending(self, make_epsilon: Callable[[float], Epsilon], rounds: int) -> Spending:
        """What a run spends with the given noise, or with the noise that an epsilon allows.

        Args:
            make_epsilon: noise multiplier > 0 -> the run's epsilon.
            rounds: rounds of the run.

        Raises:
            ValueError: if not exactly one of noise and epsilon is given, if there is noise
                without a bound, or if the budget cannot be met.
        """
        multiplier, epsilon = self.noise_multiplier, self.epsilon
        if self.clip_norm is None and multiplier != 0:
            raise ValueError(
                "privacy.clip_norm=null: noise hides only what has a bound; allowed: a number > "
                "0, or privacy.noise_multiplier=0 with privacy.epsilon=null"
            )
        if (multiplier is None) == (epsilon is None):
            given = f"privacy.noise_multiplier={multiplier} with privacy.epsilon={epsilon}"
            raise ValueError(
                f"{given.replace('None', 'null')}: each determines the other; allowed: exactly "
                f"one of them is a number"
            )
        if epsilon is not None:
            multiplier = calibrated(make_epsilon, budget=epsilon, rounds=rounds)
        assert multiplier is not None
        spent = make_epsilon(multiplier) if multiplier else _unbounded
        return Spending(multiplier, spent, _limit(spent, self.max_epsilon, rounds))


def _unbounded(rounds: int) -> float:
    return math.inf if rounds else 0.0


def _limit(epsilon: Epsilon, max_epsilon: float | None, rounds: int) -> int | None:
    """Most rounds within `max_epsilon`; None: all of the run. Epsilon never falls."""
    if max_epsilon is None or epsilon(rounds) <= max_epsilon:
        return None
    allowed = bisect_right(range(1, rounds), max_epsilon, key=epsilon)
    if not allowed:
        raise ValueError(
            f"privacy.max_epsilon={max_epsilon:g}: the first round spends {epsilon(1):.4g}; "
            f"allowed: at least that, or more noise"
        )
    return allowed


def calibrated(make_epsilon: Callable[[float], Epsilon], *, budget: float, rounds: int) -> float:
    """The smallest noise multiplier that spends at most the budget, within 0.5 % of epsilon.

    `make_epsilon` makes the run's epsilon of a noise multiplier. The budget is > 0, for all
    rounds.

    Raises:
        ValueError: if no noise meets the budget, or it allows to have no noise at all.
    """

    def excess(log_multiplier: float) -> float:
        spent = make_epsilon(math.exp(log_multiplier))(rounds)
        # A quarter of a percent below the budget, which the root may exceed by rounding.
        return math.log(min(max(spent, 1e-9), _HUGE) / (0.9975 * budget))

    low = high = 1.0
    while excess(math.log(low)) < 0:
        low /= 2
        if low < _SMALLEST:
            raise ValueError(
                f"privacy.epsilon={budget:g} needs next to no noise; use privacy.noise_multiplier"
            )
    while excess(math.log(high)) > 0:
        high *= 2
        if high > _LARGEST:
            raise ValueError(
                f"privacy.epsilon={budget:g} cannot be met by any noise, as far as the accountant "
                f"knows; allowed: a larger epsilon or delta"
            )
    # Epsilon falls by at most twice the logarithm of the multiplier where it matters.
    root = brentq(excess, math.log(low), math.log(high), xtol=2e-4) if low < high else 0.0
    multiplier = math.exp(root)
    while make_epsilon(multiplier)(rounds) > budget:
        multiplier *= 1.0005
    return multiplier


def check_accounted(name: str, participation: Participation) -> None:
    """Refuse clients that are drawn in a way that has no accountant.

    Raises:
        ValueError: naming what draws the clients, and what is allowed.
    """
    if participation.kind == "other":
        raise ValueError(
            f"privacy={name} with {participation.reason}: no accountant knows who takes part; "
            f"allowed: sampler=poisson, sampler=uniform or sampler=cyclic, with pace=sync "
            f"and without a selection"
        )
