"""DP-FTRL: noise that cancels over rounds, for clients that take turns.

Kairouz, McMahan, Song, Thakkar, Thakurta, Xu: Practical and Private (Deep) Learning without
Sampling or Shuffling. ICML 2021. https://arxiv.org/abs/2103.00039

It needs no sampling at random. Instead no client may take part twice in a pass, which
`sampler=cyclic` guarantees. `tree_noise.py` describes the noise. Theorem D.2: with restarts after
each pass, a client changes at most `depth` nodes of each tree, by at most C each. That is a
Gaussian mechanism for each of these nodes, of which the composition is exact.
"""

from functools import partial

from flfast.channel.privacy.accountants import Epsilon, composed_gaussian
from flfast.channel.privacy.budget import spending
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import Privacy, SumNoise
from flfast.channel.privacy.tree_noise import tree_depth, tree_noise
from flfast.state.options import Delta, NonNegative, Positive


def dp_ftrl(  # noqa: PLR0913 - one parameter an option
    *,
    clip_norm: Positive | None,
    noise_multiplier: NonNegative | None,
    epsilon: Positive | None,
    delta: Delta,
    max_epsilon: Positive | None,
    secure: bool,
    participation: Participation,
    rounds: int,
) -> SumNoise:
    """Clients' changes are clipped, and the sum over rounds is noised by tree aggregation.

    Args:
        clip_norm: C; None is no bound, and needs noise of zero.
        noise_multiplier: standard deviation of a node's noise over C; None: see `epsilon`.
        epsilon: find the smallest noise whose epsilon after all rounds is at most this.
        delta: probability with which epsilon may be exceeded.
        max_epsilon: end the run before the round in which it would be exceeded.
        secure: draw noise from the system's randomness.
        participation: who takes part in a round; must be `cyclic`.
        rounds: of the run.

    Raises:
        ValueError: with key, value and what is allowed.
    """
    if participation.kind != "cyclic":
        found = participation.reason or f"{participation.kind} sampling of clients"
        raise ValueError(
            f"privacy=dp_ftrl with {found}: a client may take part once in a pass; allowed: "
            f"sampler=cyclic"
        )
    per_pass = participation.rounds_per_pass
    spent = spending(
        partial(_epsilon, delta=delta, rounds_per_pass=per_pass),
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        max_epsilon=max_epsilon,
        rounds=rounds,
    )
    return Privacy(
        name="dp_ftrl",
        clip_norm=clip_norm,
        central_noise=None if clip_norm is None else tree_noise(per_pass),
        central_multiplier=spent.multiplier,
        expected_clients=None if clip_norm is None else participation.expected,
        epsilon=spent.epsilon,
        delta=delta,
        unit="client",
        adjacency="zero out",
        rounds=spent.rounds,
        secure=secure,
    )


def _epsilon(multiplier: float, *, delta: float, rounds_per_pass: int) -> Epsilon:
    def nodes(rounds: int) -> float:
        passes, rest = divmod(rounds, rounds_per_pass)
        return passes * tree_depth(rounds_per_pass) + tree_depth(rest)

    return composed_gaussian(multiplier, delta, nodes)
