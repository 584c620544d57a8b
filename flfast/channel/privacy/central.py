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

from dataclasses import dataclass

from flfast.channel.privacy.accountants import Accountant, central_epsilon
from flfast.channel.privacy.adaptive_clipping import AdaptiveClipping, sum_multiplier
from flfast.channel.privacy.budget import Budget, check_accounted
from flfast.channel.privacy.noise_sources import independent_noise
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import Adjacency, Privacy, SumNoise
from flfast.state.options import Count, Positive, UpToOne


@dataclass(frozen=True, kw_only=True)
class Central(Budget):
    """Clients' changes are clipped, and their sum is noised; see `Budget`.

    C is that of round 1 if it adapts. The noise on the count of unclipped changes is at least z;
    2 z if a client counts although its change is zero.
    """

    accountant: Accountant
    adaptive_quantile: UpToOne | None
    adaptive_lr: Positive
    adaptive_count_std: Positive | None
    noise_cohort: Count | None
    noise_population: Count | None
    secure: bool

    def __call__(self, *, participation: Participation, rounds: int) -> SumNoise:
        """The privacy of a run.

        Raises:
            ValueError: with key, value and what is allowed.
        """
        check_accounted("central", participation)
        deployed, scale, warning = participation, 1.0, ""
        if self.noise_cohort is not None:
            deployed = self._deployment(participation, self.noise_cohort)
            scale = participation.cohort / self.noise_cohort
            warning = (
                f"privacy.noise_cohort={self.noise_cohort}: epsilon is that of Poisson samples of "
                f"{self.noise_cohort} out of {deployed.population} clients; this run, with "
                f"cohorts of {participation.cohort:g} out of {participation.population}, is less "
                f"private"
            )
        spent = self.spending(
            lambda z: central_epsilon(z, self.delta, deployed, self.accountant), rounds
        )
        on_sum, adaptive = self._adapting(deployed, spent.multiplier, scale)
        # Without a bound nothing is promised, and the mean stays the one without privacy.
        bounded = self.clip_norm is not None
        return Privacy(
            name="central",
            clip_norm=self.clip_norm,
            adaptive=adaptive,
            central_noise=independent_noise if bounded else None,
            central_multiplier=scale * on_sum,
            expected_clients=participation.expected if bounded else None,
            epsilon=spent.epsilon,
            delta=self.delta,
            unit="client",
            adjacency=_ADJACENCY[deployed.kind],
            rounds=spent.rounds,
            secure=self.secure,
            warning=warning,
        )

    def _deployment(self, run: Participation, cohort: int) -> Participation:
        """Poisson samples of the size for which noise is calibrated."""
        population = run.population if self.noise_population is None else self.noise_population
        if cohort > population:
            raise ValueError(
                f"privacy.noise_cohort={cohort} exceeds the population; allowed: 1 to "
                f"{population}, or a larger privacy.noise_population"
            )
        return Participation("poisson", population, cohort, expected=cohort)

    def _adapting(
        self, deployed: Participation, multiplier: float, scale: float
    ) -> tuple[float, AdaptiveClipping | None]:
        """The sum's share of a multiplier, and how C adapts with noise of this scale."""
        if self.adaptive_quantile is None:
            return multiplier, None
        if self.clip_norm is None:
            raise ValueError(
                f"privacy.adaptive_quantile={self.adaptive_quantile:g} with "
                f"privacy.clip_norm=null: what adapts has to begin somewhere; allowed: a number > "
                f"0"
            )
        share = _COUNT_SHARE[_ADJACENCY[deployed.kind]]
        least = 2 * share * multiplier
        count_std = self.adaptive_count_std or max(deployed.expected / 20, least)
        on_sum = sum_multiplier(multiplier, count_std, share)
        scaled = scale * count_std if multiplier else 0.0
        return on_sum, AdaptiveClipping(self.adaptive_quantile, self.adaptive_lr, scaled)


_ADJACENCY: dict[str, Adjacency] = {
    "poisson": "add or remove",
    "fixed": "replace",
    "cyclic": "zero out",
}
_COUNT_SHARE: dict[Adjacency, float] = {"add or remove": 0.5, "replace": 0.5, "zero out": 1.0}
"""How far the count of unclipped changes moves at most while their sum moves by C."""
