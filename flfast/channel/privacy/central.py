"""Central differential privacy: the server clips, adds noise to the sum, and forgets the rest.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models. ICLR
2018, Algorithm 1 with the estimator of a fixed denominator. https://arxiv.org/abs/1710.06963

    change_k := change_k * min(1, C / |change_k|)
    mean = (sum_k change_k + N(0, (z C)^2)) / expected number of clients

It protects clients against everybody who sees the server's models, but not against the server.
The denominator is a constant, because the number of clients that took part is no secret to spend
privacy on. All clients weigh the same.

`noise_cohort` gives the noise of a larger deployment, at the scale of a small simulation: noise
that is calibrated for cohorts of that size is multiplied by cohort / noise_cohort, so that the
ratio of noise and mean is the deployment's. This is `noise_cohort_size` of pfl-research (Granqvist
et al., 2024, https://arxiv.org/abs/2404.06430). The simulation itself is less private.
"""

from flfast.channel.privacy.accountants import Accountant, central_epsilon
from flfast.channel.privacy.adaptive_clipping import AdaptiveClipping, sum_multiplier
from flfast.channel.privacy.budget import check_accounted, spending
from flfast.channel.privacy.noise_sources import independent_noise
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import Adjacency, Privacy, SumNoise
from flfast.state.options import Count, Delta, NonNegative, Positive, UpToOne


def central(  # noqa: PLR0913 - one parameter an option
    *,
    clip_norm: Positive | None,
    noise_multiplier: NonNegative | None,
    epsilon: Positive | None,
    delta: Delta,
    max_epsilon: Positive | None,
    accountant: Accountant,
    adaptive_quantile: UpToOne | None,
    adaptive_lr: Positive,
    adaptive_count_std: Positive | None,
    noise_cohort: Count | None,
    noise_population: Count | None,
    secure: bool,
    participation: Participation,
    rounds: int,
) -> SumNoise:
    """Clients' changes are clipped, and their sum is noised.

    C is `clip_norm`, in round 1 if it adapts, and z is `noise_multiplier`. The noise on the count
    of unclipped changes is at least z; 2 z if a client counts although its change is zero.

    Raises:
        ValueError: with key, value and what is allowed.
    """
    check_accounted("central", participation)
    deployed, scale, warning = participation, 1.0, ""
    if noise_cohort is not None:
        deployed = _deployment(participation, noise_cohort, noise_population)
        scale = participation.cohort / noise_cohort
        warning = (
            f"privacy.noise_cohort={noise_cohort}: epsilon is that of Poisson samples of "
            f"{noise_cohort} out of {deployed.population} clients; this run, with cohorts of "
            f"{participation.cohort:g} out of {participation.population}, is less private"
        )
    spent = spending(
        lambda z: central_epsilon(z, delta, deployed, accountant),
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        max_epsilon=max_epsilon,
        rounds=rounds,
    )
    adaptive, on_sum = None, spent.multiplier
    if adaptive_quantile is not None:
        if clip_norm is None:
            raise ValueError(
                f"privacy.adaptive_quantile={adaptive_quantile:g} with privacy.clip_norm=null: "
                f"what adapts has to begin somewhere; allowed: a number > 0"
            )
        share = _COUNT_SHARE[_ADJACENCY[deployed.kind]]
        least = 2 * share * spent.multiplier
        count_std = adaptive_count_std or max(deployed.expected / 20, least)
        on_sum = sum_multiplier(spent.multiplier, count_std, share)
        adaptive = AdaptiveClipping(
            adaptive_quantile,
            adaptive_lr,
            count_std=scale * count_std if spent.multiplier else 0.0,
        )
    return Privacy(
        name="central",
        clip_norm=clip_norm,
        adaptive=adaptive,
        central_noise=None if clip_norm is None else independent_noise,
        central_multiplier=scale * on_sum,
        # Without a bound nothing is promised, and the mean stays the one without privacy.
        expected_clients=None if clip_norm is None else participation.expected,
        epsilon=spent.epsilon,
        delta=delta,
        unit="client",
        adjacency=_ADJACENCY[deployed.kind],
        rounds=spent.rounds,
        secure=secure,
        warning=warning,
    )


_ADJACENCY: dict[str, Adjacency] = {
    "poisson": "add or remove",
    "fixed": "replace",
    "cyclic": "zero out",
}
_COUNT_SHARE: dict[Adjacency, float] = {"add or remove": 0.5, "replace": 0.5, "zero out": 1.0}
"""How far the count of unclipped changes moves at most while their sum moves by C."""


def _deployment(run: Participation, cohort: int, population: int | None) -> Participation:
    """Poisson samples of the size for which noise is calibrated."""
    population = run.population if population is None else population
    if cohort > population:
        raise ValueError(
            f"privacy.noise_cohort={cohort} exceeds the population; allowed: 1 to {population}, "
            f"or a larger privacy.noise_population"
        )
    return Participation("poisson", population, cohort, expected=cohort)
