"""The clipping norm follows a quantile of the clients' norms.

Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping.
NeurIPS 2021, Algorithm 1 and section 2. https://arxiv.org/abs/1905.03871

    b_k = 1 if |change_k| <= C, otherwise 0
    share = 1/2 + (sum_k (b_k - 1/2) + N(0, count_std^2)) / expected number of clients
    C := C * exp(-lr * (share - quantile))

The noise on the sum of changes and the noise on the count together protect as much as noise with
the multiplier z on the sum alone: 1 / z^2 = 1 / z_sum^2 + (s / count_std)^2, where the count moves
by at most s while the sum moves by C. Counting b_k - 1/2 bounds what a client adds to the count by
1/2. So s is 1/2 for one client more or less. It is also 1/2 for another client in the place of
one, which moves the sum by 2 C and the count by 1. But a client whose change becomes zero still
counts, as b_k = 1: it moves the sum by C and the count by 1, and s is 1.
"""

import math
from typing import NamedTuple


class AdaptiveClipping(NamedTuple):
    """How the clipping norm C changes from round to round.

    Attributes:
        quantile: share of the clients whose change shall not be clipped, in [0, 1].
        lr: step size in the logarithm of C, > 0.
        count_std: standard deviation of the noise on the count of unclipped changes, >= 0.
    """

    quantile: float
    lr: float
    count_std: float

    def noisy_share(self, num_within: int, num_uploads: int, expected: float, z: float) -> float:
        """Noisy share of the clients whose change is not clipped; it may leave [0, 1].

        Args:
            num_within: uploads whose change has a norm of at most C.
            num_uploads: number of uploads of the round.
            expected: mean number of uploads of a round, > 0.
            z: standard normal noise of the round, the same on all ranks.
        """
        return 0.5 + (num_within - num_uploads / 2 + self.count_std * z) / expected

    def next_norm(self, clip_norm: float, share: float) -> float:
        """The next round's clipping norm, from that of this round and its `noisy_share`."""
        return clip_norm * math.exp(-self.lr * (share - self.quantile))


def sum_multiplier(noise_multiplier: float, count_std: float, count_share: float) -> float:
    """Noise multiplier of the sum, if the noise on the count shall cost no more privacy.

    It is larger than without adaptive clipping, because the count costs privacy, too.

    Args:
        noise_multiplier: z of both together, >= 0.
        count_std: standard deviation of the noise on the count; larger than s z.
        count_share: s, > 0.

    Raises:
        ValueError: if the count alone costs as much privacy as both may together.
    """
    if not noise_multiplier:
        return 0.0
    left = noise_multiplier**-2 - (count_share / count_std) ** 2
    if left <= 0:
        raise ValueError(
            f"privacy.adaptive_count_std={count_std:g} with a noise multiplier of "
            f"{noise_multiplier:g}: the count alone would cost all privacy; allowed: more than "
            f"{count_share * noise_multiplier:g}"
        )
    return left**-0.5
