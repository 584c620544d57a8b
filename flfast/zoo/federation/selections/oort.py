"""Oort: clients whose examples had large losses when they last trained are preferred.

Lai, Zhu, Madhyastha, Chowdhury: Oort: Efficient Federated Learning via Guided Participant
Selection. OSDI 2021, section 4 and Algorithm 1. https://arxiv.org/abs/2010.06081

    U_k = |B_k| * sqrt(mean of squared losses over B_k),   when client k last trained: round L_k
    s_k = (min(U_k, bound) - low) / range + sqrt(0.1 * log(R) / L_k),   now: round R
    E   = max(exploration * decay^(R-1), min_exploration)

Of the clients that train, the share E is drawn uniformly from candidates that have not trained
yet. The rest is drawn from those that have, in proportion to s_k. These draws leave out clients
below `cutoff` * s, where s is the lowest score that would be selected without chance. If one of
the groups is too small, the other one gives more.

- B_k are all training examples, and their losses are those of the weights that local training
  starts from, in evaluation mode. The paper takes the losses that occur during training.
- `bound` is the quantile `clip` of U_k. As in the authors' code, and not in the paper, utilities
  are scaled: low is 0.999 times the smallest one, and range the distance of the largest from low.
- The authors' code explores large clients first. Its `clip` and `cutoff` differ between versions.
- U_k stays as it is if the client's upload is lost, rejected, or left out by a robust rule.

Virtual time is not read. So there is no system utility and no pacer, and exploration does not
prefer fast clients. Candidates that drop out count as absent: they are not selected.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from flfast.algorithms.contract import Algorithm
from flfast.federation.selections.reported_utility import select_by_utility
from flfast.federation.selections.selected import Selecting
from flfast.state.near_ties import EQUAL
from flfast.state.options import Count, PositiveUpToOne, UpToOne
from flfast.state.randomness import generator


@dataclass(frozen=True, kw_only=True)
class Oort:
    """Train clients of the cohort with large statistical utility, and some that never trained.

    All of the cohort trains if it is smaller than `count`.

    Attributes:
        count: clients that train.
        exploration: share of clients that have not trained yet, in round 1.
        decay: factor of this share per round.
        min_exploration: smallest share.
        cutoff: share of the lowest score of the best clients that others must reach.
        clip: quantile of utilities that bounds them.
    """

    count: Count
    exploration: UpToOne
    decay: PositiveUpToOne
    min_exploration: UpToOne
    cutoff: UpToOne
    clip: PositiveUpToOne

    def __call__(self, algorithm: Algorithm, *, num_clients: int, seed: int) -> Selecting:
        """The algorithm with the selection."""
        return select_by_utility(algorithm, partial(self._select, seed), num_clients=num_clients)

    def _select(
        self, seed: int, clients: Sequence[int], utility: Tensor, last: Tensor, round_idx: int
    ) -> list[int]:
        ids, rounds = np.array(clients, dtype=np.int64), last.numpy()
        known, new = np.flatnonzero(rounds), ids[rounds == 0]
        share = max(self.exploration * self.decay ** (round_idx - 1), self.min_exploration)
        num, num_new = exploited_and_explored(
            min(self.count, len(ids)), share, num_known=len(known), num_new=len(new)
        )
        values = scores(utility.numpy()[known], rounds[known], round_idx, self.clip)
        rng = generator(seed, "selection", round_idx)
        exploited = ids[known[exploit(values, num, self.cutoff, rng)]]
        explored = rng.choice(new, num_new, replace=False) if num_new else new[:0]
        return sorted([*exploited.tolist(), *explored.tolist()])


def exploited_and_explored(
    total: int, exploration: float, *, num_known: int, num_new: int
) -> tuple[int, int]:
    """Numbers of clients to exploit and to explore, with sum `total`.

    `exploration` is the fraction to explore, in [0, 1]. `num_known` clients have trained before,
    `num_new` have not, and `total` is at most their sum.
    """
    # 10 * 0.3 is slightly more than 3 in floating point and must not round up to 4.
    exploited = min(total - math.ceil(total * exploration - 1e-9), num_known)
    explored = min(total - exploited, num_new)
    return total - explored, explored


def scores(utility: np.ndarray, last: np.ndarray, round_idx: int, clip: float) -> np.ndarray:
    """Scores s_k of clients [K]; > 0 from round 2 on.

    Args:
        utility: statistical utility of each client, >= 0, float64 [K].
        last: the round in which each of them last trained, >= 1, int64 [K].
        round_idx: the current one.
        clip: quantile of utilities that bounds them.
    """
    if not len(utility):
        return utility
    bound = np.sort(utility)[min(int(len(utility) * clip), len(utility) - 1)]
    low = 0.999 * utility.min()
    scaled = (np.minimum(utility, bound) - low) / max(utility.max() - low, 1e-4)
    return scaled + np.sqrt(0.1 * math.log(round_idx) / last)


def exploit(values: np.ndarray, num: int, cutoff: float, rng: np.random.Generator) -> np.ndarray:
    """Places of `num` clients, drawn without replacement in proportion to their scores.

    The scores [K] are > 0. `cutoff` is the share of the num-th largest score that others must
    reach to be drawn.
    """
    if not num:
        return np.zeros(0, dtype=np.int64)
    lowest = (1 - EQUAL) * cutoff * np.sort(values)[-num]
    places = np.flatnonzero(values >= lowest)
    return rng.choice(places, num, replace=False, p=values[places] / values[places].sum())
