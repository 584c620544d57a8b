"""Epsilon after a number of rounds, by the accountants of the library `dp-accounting`.

Every function here returns a function: rounds done -> epsilon at a fixed delta. They differ in how
clients are drawn, which decides how data sets are compared (`Adjacency`):

- Poisson sampling: one client more or less. Sensitivity C.
- K of N clients without replacement: another client in the place of one. The sum of changes may
  then move by 2 C, so its noise counts half. Wang, Balle, Kasiviswanathan: Subsampled Renyi
  Differential Privacy and Analytical Moments Accountant. AISTATS 2019, Theorem 9.
- No sampling: Gaussian mechanisms in which a client takes part a bounded number of times. Their
  composition is one Gaussian mechanism, whose epsilon is exact. Balle, Wang: Improving the
  Gaussian Mechanism for Differential Privacy. ICML 2018, Theorem 8.

RDP: Renyi differential privacy, Mironov, Talwar, Zhang 2019, https://arxiv.org/abs/1908.10530.
PLD: privacy loss distributions, Doroshenko et al. 2022, https://arxiv.org/abs/2207.04380.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

from flfast.channel.privacy.participation import Participation
from flfast.state.extras import import_extra

_INTERVAL = 1e-3
"""Discretisation of privacy losses. Epsilon is at most 0.2 % larger than with the library's 1e-4,
at a tenth of the time: 0.05 s for a number of rounds."""

_WHOLE_ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64, 128, 512, 1024)
"""Renyi orders for samples without replacement, whose bound takes O(order^2) for each of them."""

Epsilon = Callable[[int], float]
Accountant = Literal["pld", "rdp"]


def library() -> Any:
    """The library `dp-accounting`, imported when privacy is used.

    Raises:
        ValueError: if it is not installed.
    """
    found = import_extra("dp_accounting", extra="privacy", by="privacy")
    from absl.logging import get_absl_handler  # dp-accounting has it

    # absl would close what stands for stderr now, such as a file of the caller's, with logging.
    get_absl_handler().python_handler.stream = sys.__stderr__
    return found


def composed_gaussian(multiplier: float, delta: float, times: Callable[[int], float]) -> Epsilon:
    """Epsilon of Gaussian mechanisms that are not sampled; exact.

    Args:
        multiplier: standard deviation of the noise over the sensitivity, >= 0.
        delta: in (0, 1).
        times: rounds done -> number of mechanisms in which one unit takes part at most.
    """

    @cache
    def epsilon(rounds: int) -> float:
        number = times(rounds)
        if not number:
            return 0.0
        return float(library().get_epsilon_gaussian(multiplier / math.sqrt(number), delta))

    return epsilon


def poisson_sampled(
    multiplier: float, delta: float, rate: float, accountant: Accountant
) -> Epsilon:
    """Epsilon of Gaussian mechanisms on Poisson samples; see the module.

    Args:
        multiplier: standard deviation of the noise over the sensitivity C, >= 0.
        delta: in (0, 1).
        rate: probability that a client takes part in a round, in (0, 1].
        accountant: `pld` is tight; `rdp` is faster and gives up to some percent more.
    """
    if rate == 1 or not multiplier:
        return composed_gaussian(multiplier, delta, float)
    event = library().PoissonSampledDpEvent(rate, library().GaussianDpEvent(multiplier))
    if accountant == "pld":
        return _composed_losses(event, delta)
    return _composed_divergences(event, delta, "ADD_OR_REMOVE_ONE")


def fixed_size_sampled(multiplier: float, delta: float, participation: Participation) -> Epsilon:
    """Epsilon of Gaussian mechanisms on K of N clients, by RDP; see the module.

    It is at most that of the same mechanisms without sampling, which the bound by RDP exceeds for
    large cohorts. The multiplier is the standard deviation of the noise over C, >= 0.
    """
    replaced = multiplier / 2
    unsampled = composed_gaussian(replaced, delta, float)
    if participation.rate == 1 or not multiplier:
        return unsampled
    event = library().SampledWithoutReplacementDpEvent(
        participation.population, round(participation.cohort), library().GaussianDpEvent(replaced)
    )
    sampled = _composed_divergences(event, delta, "REPLACE_ONE", _WHOLE_ORDERS)
    return lambda rounds: min(sampled(rounds), unsampled(rounds))


def central_epsilon(
    multiplier: float, delta: float, participation: Participation, accountant: Accountant
) -> Epsilon:
    """Epsilon of noise on the sum of a cohort's changes.

    The multiplier is the standard deviation of the noise over C, >= 0. The accountant is that of
    Poisson sampling.
    """
    if participation.kind == "poisson":
        return poisson_sampled(multiplier, delta, participation.rate, accountant)
    if participation.kind == "fixed":
        return fixed_size_sampled(multiplier, delta, participation)
    return composed_gaussian(multiplier, delta, participation.most_rounds)


def _composed_divergences(
    event: object, delta: float, relation: str, orders: Sequence[float] | None = None
) -> Epsilon:
    """Epsilon of an event in every round, from its Renyi divergences."""
    rdp = library().rdp
    accountant = rdp.RdpAccountant(orders, library().NeighboringRelation[relation])
    with _without_warnings():
        accountant.compose(event)
    used, divergences = accountant.orders, accountant.rdp

    @cache
    def epsilon(rounds: int) -> float:
        return float(rdp.compute_epsilon(used, rounds * divergences, delta)[0]) if rounds else 0.0

    return epsilon


def _composed_losses(event: Any, delta: float) -> Epsilon:
    """Epsilon of an event in every round, from the distribution of its privacy loss."""
    losses = library().pld.privacy_loss_distribution.from_gaussian_mechanism(
        event.event.noise_multiplier,
        sampling_prob=event.sampling_probability,
        value_discretization_interval=_INTERVAL,
    )

    @cache
    def epsilon(rounds: int) -> float:
        return float(losses.self_compose(rounds).get_epsilon_for_delta(delta)) if rounds else 0.0

    return epsilon


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Without the library's warnings of orders that it leaves out; epsilon holds without them."""
    log = logging.getLogger("absl")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before
