"""Reduces a cohort's uploads to their mean without seeing any of them.

Clients weight, encode and mask their uploads. The server adds the masked ones, and gets the sum
when the masks are removed: `channel/secure/`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Part
from flfast.channel.channel import Channel
from flfast.channel.reduced import Reduced, Specs
from flfast.channel.reduction import divided
from flfast.channel.secure.round_messages import Mask
from flfast.channel.secure.round_terms import ShortageError, Sums
from flfast.distributed.world import World, gather, spec
from flfast.state.near_ties import nearest_whole
from flfast.state.stack import check_same_leaves
from flfast.state.tree import Tree, leaves
from flfast.state.vector import from_vectors, to_vectors, vector_sizes

if TYPE_CHECKING:  # need cryptography
    from flfast.channel.secure.masked_round import MaskedRound
    from flfast.channel.secure.server_round import ServerRound

log = logging.getLogger(__name__)


class Encoding(NamedTuple):
    """Uploads as vectors to mask, and sums of vectors as means.

    A client encodes its change of the learned means, multiplied by its weight over the largest
    weight. Its weight, counts, and what is summed or divided are encoded in wider words.

    Attributes:
        parts: parts of uploads, by name; other parts are means.
        max_weight: largest weight of a client.
    """

    parts: Mapping[str, Part]
    max_weight: float

    @property
    def is_wide(self) -> set[str]:
        """Names of parts in wide words."""
        return {name for name, part in self.parts.items() if not (part.learned and part.is_mean)}

    def vectors(
        self, client_id: int, upload: Tree, weight: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values [D] and wide values [W] of a client, float64.

        Raises:
            ValueError: if its weight is larger than the largest one.
        """
        if weight > self.max_weight:
            raise ValueError(
                f"secure.max_weight={self.max_weight:g}: client {client_id} weighs {weight:g}; "
                f"allowed: secure.max_weight >= {weight:g}"
            )
        share = weight / self.max_weight
        change, wide = to_vectors(upload, self.is_wide)
        factors = torch.where(self._is_sum(upload), 1.0, share)
        counts = torch.cat([torch.tensor([weight], dtype=torch.float64), factors * wide])
        return share * change.double().numpy(), counts.numpy()

    def sizes(self, like: Tree) -> tuple[int, int]:
        """D and W of an upload."""
        sizes = vector_sizes(like, self.is_wide)
        return sizes.learned, sizes.counted + 1

    def mean(self, sums: Sums, like: Tree) -> Tree | None:
        """The mean of uploads whose sum is known; None if all weights are zero."""
        weight, wide = float(sums.wide[0]), torch.from_numpy(sums.wide[1:])
        if not weight:
            return None
        share = weight / self.max_weight
        means = torch.where(self._is_sum(like), wide, wide / share)
        is_whole = self._marks(like, lambda _, leaf: not leaf.is_floating_point())
        means = torch.where(is_whole, nearest_whole(means), means)
        mean = from_vectors(torch.from_numpy(sums.values) / share, means, like, self.is_wide)
        return divided(mean, self.parts)

    def _is_sum(self, upload: Tree) -> Tensor:
        """Which wide values are sums, bool [W - 1]."""
        return self._marks(upload, lambda name, _: self.parts.get(name, Part()).rule == "sum")

    def _marks(self, upload: Tree, is_marked: Callable[[str, Tensor], bool]) -> Tensor:
        """Which wide values are of a marked (part, leaf), in the order of `to_vectors`."""
        flags = [torch.zeros(0, dtype=torch.bool)]
        for name, part in upload.items():
            flags += [
                torch.full((leaf.numel(),), is_marked(name, leaf))
                for leaf in leaves({name: part})
                if name in self.is_wide or not leaf.is_floating_point()
            ]
        return torch.cat(flags)


class MaskedReduction:
    """The weighted mean of masked uploads, in the memory of one upload. See `Reduction`."""

    def __init__(self, secure: "MaskedRound | ServerRound", encoding: Encoding) -> None:
        self.secure, self._encoding = secure, encoding
        self.total: Tensor | None = None
        self._like: Tree | None = None
        self._arrived: list[int] = []
        self._num_clamped = 0

    def agree(self, like: Tree) -> tuple[Tree, dict[int, Mask | str]]:
        """What real clients' masked uploads look like, and how each masks it, or why it cannot.

        `like` is an upload of a client that masks nothing, of meta tensors.
        """
        self._like = like
        real = cast("ServerRound", self.secure)
        num, num_wide = self._encoding.sizes(like)
        vector = torch.empty(num + num_wide, dtype=torch.int64, device="meta")
        return real.terms.masked(vector, num_wide), real.agree(self._encoding.max_weight)

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`: a masked upload, in which the weight is."""
        self._add_vector(client_id, torch.cat([leaf.long() for leaf in leaves(upload)]))

    def _add_vector(self, client_id: int, vector: Tensor) -> None:
        """Add the words of a masked upload, int64 [D + W]."""
        self.total = vector if self.total is None else self.total.add_(vector)
        self._arrived.append(client_id)

    def specs(self) -> list[Tree | None]:
        """See `Reduction`."""
        return [spec(self._like)]

    def combine(self, world: World, specs: Specs | None = None) -> Reduced:
        """See `Reduction`."""
        (like,) = self.specs() if specs is None else specs
        if like is None:
            return Reduced(None)
        num, num_wide = self._encoding.sizes(like)
        total = self.total
        if total is None:
            total = torch.zeros(num + num_wide, dtype=torch.int64)
        if world.size > 1:
            dist.all_reduce(total)
        ranks = gather(world, (self._arrived, self._num_clamped))
        arrived = [client_id for ids, _ in ranks for client_id in ids]
        if world.rank == 0:
            warn_of_clamping("the cohort's changes", sum(n for _, n in ranks), len(arrived) * num)
        try:
            sums = self.secure.unmask(total, arrived, num_wide)
            # Masks that are left are uniform in a range 2^31 / max_weight times as large.
            if not -1 < sums.wide[0] < len(arrived) * self._encoding.max_weight + 1:
                raise ShortageError("masks are left in the sum: a share or upload is damaged")
        except ShortageError as error:
            return Reduced(None, shortage=str(error), unhelpful=self.secure.lost)
        mean = self._encoding.mean(sums, like)
        traffic = None if mean is None else self.secure.terms.traffic(num, num_wide)
        return Reduced(mean, traffic=traffic, unhelpful=self.secure.lost)


def warn_of_clamping(whose: str, num: int, of: int) -> None:
    """Say how many elements were too large, if some were."""
    if num:
        log.warning(
            "secure.max_change: %d of %d elements of %s were larger and have been clamped",
            *(num, of, whose),
        )


class SecureReduction(MaskedReduction):
    """Masks uploads as their clients would, and adds them. See `Reduction`."""

    secure: "MaskedRound"

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`.

        Raises:
            ValueError: if its leaves differ from those of earlier uploads, its weight is larger
                than the largest one, or it has parts that are not summed.
        """
        if self._like is not None:
            check_same_leaves(upload, self._like, f"client {client_id}")
        vectors = self._encoding.vectors(client_id, upload, weight)
        self._like = upload
        vector, num_clamped = self.secure.mask(client_id, *vectors)
        self._add_vector(client_id, vector)
        self._num_clamped += num_clamped


def secure_reduction(
    channel: Channel, algorithm: Algorithm, cohort: Sequence[int], path: tuple[int, int]
) -> MaskedReduction:
    """The reduction of one call of a cohort by secure aggregation: real clients mask themselves.

    The path is the round, and the number of the call in the round.
    """
    secure = channel.secure
    assert secure.make_round is not None
    equal = algorithm.weighs_equally or channel.privacy.central_noise is not None
    max_weight = 1.0 if equal or secure.max_weight is None else secure.max_weight
    encoding = Encoding(algorithm.parts, max_weight)
    if secure.ask is not None:
        from flfast.channel.secure.server_round import ServerRound  # needs cryptography

        assert secure.make_terms is not None
        real = ServerRound(secure.make_terms(cohort, channel.seed, path), path, secure.ask)
        return MaskedReduction(real, encoding)
    return SecureReduction(secure.make_round(cohort, channel.seed, path), encoding)
