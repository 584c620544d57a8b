"""What leaves the server with `privacy=central`: the noisy mean, and the next clipping norm."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.algorithms.contract import Part
from flfast.channel.channel import CLIP_NORM, NOISE, Channel
from flfast.state.tree import Tree, merge, tree_map
from flfast.state.vector import learned


class Aggregated(NamedTuple):
    """What is known of the uploads of a call.

    Attributes:
        round_idx: from 1.
        num_uploads: that were aggregated.
        num_within: uploads whose change was not longer than the clipping norm.
    """

    round_idx: int
    num_uploads: int
    num_within: int


def released(
    channel: Channel, mean: Tree, parts: Mapping[str, Part], uploads: Aggregated
) -> tuple[Tree, Channel]:
    """The mean with noise, and the channel of the next round, which may remember the noise.

    The mean is `(sum of changes + noise) / expected clients`. Parts with the rule `sum` are the
    sum of changes and noise. Given are a channel with central noise, and the mean of the uploads,
    which all weigh the same; sums for such parts.
    """
    privacy, limit = channel.privacy, channel.clip_limit
    add_noise, expected = privacy.central_noise, privacy.expected_clients
    assert add_noise is not None and expected is not None and limit is not None
    change = learned(mean, ())
    std = privacy.central_multiplier * limit
    noise = add_noise(change, std, uploads.round_idx, channel.noise("central noise"))
    if privacy.correlate is not None:
        noise, kept = privacy.correlate(noise, uploads.round_idx, channel.memory.get(NOISE, {}))
        channel = replace(channel, memory={**channel.memory, NOISE: kept})
    noisy: Tree = {}
    for name in change:
        is_sum = parts.get(name, Part()).rule == "sum"
        factors = (1.0, 1.0) if is_sum else (uploads.num_uploads / expected, 1 / expected)
        noisy |= _combined({name: change[name]}, {name: noise[name]}, *factors)
    return merge(mean, noisy), channel


def with_next_norm(channel: Channel, uploads: Aggregated) -> Channel:
    """The channel of the next round, whose clipping norm may have adapted."""
    adaptive, expected = channel.privacy.adaptive, channel.privacy.expected_clients
    limit = channel.clip_limit
    if adaptive is None or expected is None or limit is None:
        return channel
    z = channel.noise("count noise")({"z": torch.zeros(1)}, uploads.round_idx)["z"]
    share = adaptive.noisy_share(uploads.num_within, uploads.num_uploads, expected, float(z))
    norm = torch.tensor(adaptive.next_norm(limit, share), dtype=torch.float64)
    return replace(channel, memory={**channel.memory, CLIP_NORM: norm})


def _combined(change: Tree, noise: Tree, share: float, noise_share: float) -> Tree:
    def combine(leaf: Tensor, z: Tensor) -> Tensor:
        return torch.add(leaf * share, z, alpha=noise_share)

    return tree_map(combine, change, noise)
