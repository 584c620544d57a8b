"""Reduces a cohort's uploads to their mean without seeing any of them.

Clients weight, encode and mask their uploads. The server adds the masked ones, and gets the sum
when the masks are removed: `channel/secure/`.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Part
from flfast.channel.channel import Channel
from flfast.channel.reduced import Reduced, Specs
from flfast.channel.reduction import divided
from flfast.channel.secure.secure import SecureRound, ShortageError
from flfast.distributed.world import World, gather, spec
from flfast.state.near_ties import nearest_whole
from flfast.state.stack import check_same_leaves
from flfast.state.tree import Tree, leaves
from flfast.state.vector import from_vectors, to_vectors, vector_sizes

log = logging.getLogger(__name__)


class SecureReduction:
    """The weighted mean of masked uploads, in the memory of one upload. See `Reduction`.

    A client encodes its change of the learned means, multiplied by its weight over the largest
    weight. Its weight, counts, and what is summed or divided are encoded in wider words.

    Args:
        secure: the round of the protocol.
        parts: parts of uploads, by name; other parts are means.
        max_weight: largest weight of a client.
        log_costs: whether to log what the protocol has cost.
    """

    def __init__(
        self,
        secure: SecureRound,
        parts: Mapping[str, Part],
        max_weight: float,
        *,
        log_costs: bool,
    ) -> None:
        self._secure, self._parts = secure, parts
        self._max_weight, self._log_costs = max_weight, log_costs
        self._is_wide = {name for name, part in parts.items() if not _is_learned_mean(part)}
        self._total: Tensor | None = None
        self._like: Tree | None = None
        self._arrived: list[int] = []
        self._num_clamped = 0

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`. What the client does is the first half, up to the masked upload.

        Raises:
            ValueError: if its leaves differ from those of earlier uploads, its weight is larger
                than the largest one, or it has parts that are not summed.
        """
        if self._like is not None:
            check_same_leaves(upload, self._like, f"client {client_id}")
        if weight > self._max_weight:
            raise ValueError(
                f"secure.max_weight={self._max_weight:g}: client {client_id} weighs {weight:g}; "
                f"allowed: secure.max_weight >= {weight:g}"
            )
        self._like, share = upload, weight / self._max_weight
        change, wide = to_vectors(upload, self._is_wide)
        factors = torch.where(self._is_sum(upload), 1.0, share)
        counts = torch.cat([torch.tensor([weight], dtype=torch.float64), factors * wide])
        masked, num_clamped = self._secure.mask(
            client_id, share * change.double().numpy(), counts.numpy()
        )
        self._total = masked if self._total is None else self._total.add_(masked)
        self._arrived.append(client_id)
        self._num_clamped += num_clamped

    def _is_sum(self, upload: Tree) -> Tensor:
        """Which wide values are sums, bool [W]."""
        flags = [torch.zeros(0, dtype=torch.bool)]
        for name, leaf in _wide_leaves(upload, self._is_wide):
            is_sum = name in self._parts and self._parts[name].rule == "sum"
            flags.append(torch.full((leaf.numel(),), is_sum))
        return torch.cat(flags)

    def specs(self) -> list[Tree | None]:
        """See `Reduction`."""
        return [spec(self._like)]

    def combine(self, world: World, specs: Specs | None = None) -> Reduced:
        """See `Reduction`."""
        (like,) = self.specs() if specs is None else specs
        if like is None:
            return Reduced(None)
        sizes = vector_sizes(like, self._is_wide)
        num_wide = sizes.counted + 1
        total = self._total
        if total is None:
            total = torch.zeros(sizes.learned + num_wide, dtype=torch.int64)
        if world.size > 1:
            dist.all_reduce(total)
        ranks = gather(world, (self._arrived, self._num_clamped))
        arrived = [client_id for ids, _ in ranks for client_id in ids]
        self._warn_of_clamping(world, sum(num for _, num in ranks), len(arrived) * sizes.learned)
        try:
            sums = self._secure.unmask(total, arrived, num_wide)
        except ShortageError as error:
            return Reduced(None, shortage=str(error))
        if self._log_costs and world.rank == 0:
            log.info("secure: %s", self._secure.costs)
        weight, wide = float(sums.wide[0]), torch.from_numpy(sums.wide[1:])
        if not weight:
            return Reduced(None)
        share = weight / self._max_weight
        means = torch.where(self._is_sum(like), wide, wide / share)
        means = torch.where(_is_whole(like, self._is_wide), nearest_whole(means), means)
        mean = from_vectors(torch.from_numpy(sums.values) / share, means, like, self._is_wide)
        traffic = self._secure.traffic(sizes.learned, num_wide)
        return Reduced(divided(mean, self._parts), traffic=traffic)

    def _warn_of_clamping(self, world: World, num: int, of: int) -> None:
        if num and world.rank == 0:
            log.warning(
                "secure.max_change: %d of %d elements of the cohort's changes were larger and "
                "have been clamped",
                *(num, of),
            )


def secure_reduction(
    channel: Channel,
    algorithm: Algorithm,
    cohort: Sequence[int],
    path: tuple[int, int],
) -> SecureReduction:
    """The reduction of one call of a cohort by secure aggregation.

    Args:
        channel: with secure aggregation.
        algorithm: whose uploads it is.
        cohort: K clients.
        path: the round, and the number of the call in the round.
    """
    secure = channel.secure
    assert secure.make_round is not None
    equal = algorithm.weighs_equally or channel.privacy.central_noise is not None
    max_weight = 1.0 if equal or secure.max_weight is None else secure.max_weight
    secure_round = secure.make_round(cohort, channel.seed, path)
    log_costs = path == (1, 0)  # later rounds cost about the same
    return SecureReduction(secure_round, algorithm.parts, max_weight, log_costs=log_costs)


def _is_learned_mean(part: Part) -> bool:
    return part.learned and part.rule == "mean" and part.over is None


def _wide_leaves(upload: Tree, is_wide: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """(part, leaf) of what is encoded in wide words, in the order of `to_vectors`."""
    for name, part in upload.items():
        for leaf in leaves({name: part}):
            if name in is_wide or not leaf.is_floating_point():
                yield name, leaf


def _is_whole(upload: Tree, is_wide: Collection[str]) -> Tensor:
    """Which wide values are integers, bool [W]."""
    flags = [torch.zeros(0, dtype=torch.bool)]
    for _, leaf in _wide_leaves(upload, is_wide):
        flags.append(torch.full((leaf.numel(),), not leaf.is_floating_point()))
    return torch.cat(flags)
