"""Finds the noise that spends a budget of epsilon, and the rounds that a budget allows."""

import math
from collections.abc import Callable

from scipy.optimize import brentq

from flfast.channel.privacy.accountants import Epsilon

_SMALLEST, _LARGEST = 2.0**-10, 2.0**30
_HUGE = 1e9
"""Stands for an epsilon that the accountant cannot express."""


def calibrated(make_epsilon: Callable[[float], Epsilon], *, budget: float, rounds: int) -> float:
    """The smallest noise multiplier that spends at most the budget, within 0.5 % of epsilon.

    Args:
        make_epsilon: noise multiplier -> the run's epsilon.
        budget: largest epsilon after all rounds, > 0.
        rounds: of the run, >= 1.

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


def most_rounds(epsilon: Epsilon, *, budget: float, rounds: int) -> int:
    """How many of a run's rounds spend at most the budget.

    Args:
        epsilon: of the run; it never falls.
        budget: largest epsilon.
        rounds: of the run.
    """
    low, high = 0, rounds + 1
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon(middle) <= budget:
            low = middle
        else:
            high = middle
    return low
