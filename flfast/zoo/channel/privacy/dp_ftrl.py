"""DP-FTRL: noise that cancels over rounds, for clients that take turns; `mechanism` says how.

Kairouz, McMahan, Song, Thakkar, Thakurta, Xu: Practical and Private (Deep) Learning without
Sampling or Shuffling. ICML 2021. https://arxiv.org/abs/2103.00039

It needs no sampling at random. Instead no client may take part twice in a pass, which
`sampler=cyclic` guarantees.

`mechanism=tree`, Theorem D.2: with restarts after each pass, a client changes at most `depth`
nodes of each tree, by at most C each. That is a Gaussian mechanism for each of these nodes, of
which the composition is exact.

Algorithm 1 with restarts (appendix D, Algorithm 4): the rounds of a pass over all clients are the
leaves of a binary tree. Every node has noise of its own. T(t) is the noise of the nodes that cover
rounds 1 to t of the pass: one for each binary digit 1 of t. In round t the server adds
T(t) - T(t - 1) to the sum of the cohort, so that the sum over rounds has the noise T(t). No state
is needed: a node's noise is a function of its place.

`mechanism=banded` is in `banded_factorisation.py`. All rounds of a client are one Gaussian
mechanism of sensitivity C sqrt(k), k its rounds. That is the same as k mechanisms of
sensitivity C.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

from flfast.channel.privacy.accountants import composed_gaussian
from flfast.channel.privacy.budget import Budget
from flfast.channel.privacy.noise_sources import independent_noise
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import (
    CentralNoise,
    Correlation,
    NoiseSource,
    Privacy,
    SumNoise,
)
from flfast.state.options import Count
from flfast.state.tree import Tree, sub, tree_map
from flfast.zoo.channel.privacy.banded_factorisation import (
    banded_correlation,
    toeplitz_coefficients,
)

_MOST_BANDS = 32
"""Unless `bands` says more: the server remembers so many models of noise."""


@dataclass(frozen=True, kw_only=True)
class DpFtrl(Budget):
    """Clients' changes are clipped, and the sum over rounds is noised by a mechanism.

    Attributes:
        mechanism: tree aggregation, or banded matrix factorisation.
        bands: bands of the matrix of `banded`; None is as many as make sense, up to 32.
        secure: whether noise comes from the system's randomness; such a run cannot be repeated.

    See `Budget` for the others.
    """

    mechanism: Literal["tree", "banded"]
    bands: Count | None
    secure: bool

    def __call__(self, *, participation: Participation, rounds: int) -> SumNoise:
        """The privacy of a run.

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

        def nodes(rounds: int) -> float:
            passes, rest = divmod(rounds, per_pass)
            return passes * tree_depth(per_pass) + tree_depth(rest)

        num_bands = self._num_bands(min(per_pass, rounds))
        times = nodes if self.mechanism == "tree" else participation.most_rounds
        spent = self.spending(lambda z: composed_gaussian(z, self.delta, times), rounds)
        noise: CentralNoise = tree_noise(per_pass)
        correlate: Correlation | None = None
        if self.mechanism == "banded":
            length = spent.rounds or rounds
            coefficients = toeplitz_coefficients(length, min(num_bands, length))
            noise, correlate = independent_noise, banded_correlation(coefficients, length)
        bounded = self.clip_norm is not None
        return Privacy(
            name="dp_ftrl",
            clip_norm=self.clip_norm,
            central_noise=noise if bounded else None,
            correlate=correlate if bounded else None,
            central_multiplier=spent.multiplier,
            expected_clients=participation.expected if bounded else None,
            epsilon=spent.epsilon,
            delta=self.delta,
            unit="client",
            adjacency="zero out",
            rounds=spent.rounds,
            secure=self.secure,
        )

    def _num_bands(self, most: int) -> int:
        """The number of bands, of which the run can use `most`."""
        if self.bands is not None and (self.mechanism == "tree" or self.bands > most):
            raise ValueError(
                f"privacy.bands={self.bands} with privacy.mechanism={self.mechanism}: allowed: "
                f"null, or with banded 1 to {most}, the rounds of a pass over the clients, or of "
                f"the run"
            )
        return min(self.bands or _MOST_BANDS, most)


def tree_noise(rounds_per_pass: int) -> CentralNoise:
    """Noise of a round; the tree begins again after every pass, in which no client comes twice."""

    def noise(like: Tree, std: float, round_idx: int, source: NoiseSource) -> Tree:
        number, place = divmod(round_idx - 1, rounds_per_pass)
        new, *replaced = (source(like, number, *node) for node in changed_nodes(place + 1))
        return tree_map(lambda z: std * z, reduce(sub, replaced, new))

    return noise


def changed_nodes(leaf: int) -> list[tuple[int, int]]:
    """Nodes (level, index) of the sum up to a leaf: the new one, and those that it replaces.

    A node of level l and index i >= 1 covers the leaves from (i - 1) * 2^l + 1 to i * 2^l.

    >>> changed_nodes(3), changed_nodes(4)
    ([(0, 3)], [(2, 1), (0, 3), (1, 1)])
    """
    level = (leaf & -leaf).bit_length() - 1
    return [(level, leaf >> level), *((low, (leaf - 1) >> low) for low in range(level))]


def tree_depth(leaves: int) -> int:
    """Most nodes that have one leaf's value, in a tree of which all leaves up to one are known.

    >>> tree_depth(0), tree_depth(3), tree_depth(4)
    (0, 2, 3)
    """
    return leaves.bit_length()
