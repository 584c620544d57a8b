"""Noise of tree aggregation: the sum of all rounds so far has little of it.

Kairouz, McMahan, Song, Thakkar, Thakurta, Xu: Practical and Private (Deep) Learning without
Sampling or Shuffling. ICML 2021, Algorithm 1 with restarts (appendix D, Algorithm 4).
https://arxiv.org/abs/2103.00039

The rounds of a pass over all clients are the leaves of a binary tree. Every node has noise of its
own. T(t) is the noise of the nodes that cover rounds 1 to t of the pass: one for each binary digit
1 of t. In round t the server adds T(t) - T(t - 1) to the sum of the cohort, so that the sum over
rounds has the noise T(t). No state is needed: a node's noise is a function of its place.
"""

from functools import reduce

from flfast.channel.privacy.privacy import CentralNoise, NoiseSource
from flfast.state.tree import Tree, sub, tree_map


def tree_noise(rounds_per_pass: int) -> CentralNoise:
    """Noise of a round; the tree begins again after every pass.

    Args:
        rounds_per_pass: rounds in which no client takes part twice.
    """

    def noise(like: Tree, std: float, round_idx: int, source: NoiseSource) -> Tree:
        number, place = divmod(round_idx - 1, rounds_per_pass)
        new, *replaced = (source(like, number, *node) for node in changed_nodes(place + 1))
        return tree_map(lambda z: std * z, reduce(sub, replaced, new))

    return noise


def changed_nodes(leaf: int) -> list[tuple[int, int]]:
    """Nodes (level, index) of the sum up to a leaf: the new one, and those that it replaces.

    A node of level l and index i covers the leaves from (i - 1) * 2^l + 1 to i * 2^l.

    >>> changed_nodes(3), changed_nodes(4)
    ([(0, 3)], [(2, 1), (0, 3), (1, 1)])

    Args:
        leaf: from 1.
    """
    level = (leaf & -leaf).bit_length() - 1
    return [(level, leaf >> level), *((low, (leaf - 1) >> low) for low in range(level))]


def tree_depth(leaves: int) -> int:
    """Most nodes that have one leaf's value, in a tree of which all leaves up to one are known.

    >>> tree_depth(0), tree_depth(3), tree_depth(4)
    (0, 2, 3)
    """
    return leaves.bit_length()
