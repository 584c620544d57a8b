"""The channel: what happens to an upload between local training and the reduction.

    upload -> clip and noise of privacy -> attack -> compression -> faults -> checks and clip

`engines/delivery.py` sends each upload through it before it adds the upload to the reduction.
Every step acts on the change of the learned parts: the upload minus its origin.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from flfast.channel.aggregations.aggregation import MEAN, Aggregation
from flfast.channel.attacks.attack import NO_ATTACK, Attack
from flfast.channel.compression.compression import NO_COMPRESSION, Compression
from flfast.channel.compression.feedback import transmit, with_feedback
from flfast.channel.faults.fault import NO_FAULTS, Faults
from flfast.channel.privacy.noise_sources import seeded_noise
from flfast.channel.privacy.privacy import NO_PRIVACY, NoiseSource, Privacy
from flfast.channel.secure.secure import NO_SECURE, Secure
from flfast.state.randomness import generator
from flfast.state.stack import structure
from flfast.state.tree import Tree, all_finite, num_bytes, tree_map, zeros
from flfast.state.vector import (
    change_norm,
    change_of,
    counts_in_range,
    with_change,
    with_learned,
    with_scaled_change,
)

Status = Literal["trained", "lost", "rejected"]
DIVERGED = "NaN or infinity"
NOT_FINITE = "NaN or infinity on arrival"
MISFIT = "leaves of other names or shapes"
MISCOUNTED = "counts out of range"
CLIPPED = "clipped"
NOT_SELECTED = "not selected"

CLIP_NORM = "clip_norm"
"""In the channel's memory: the bound of adaptive clipping, float64 []."""
AGGREGATION = "aggregation"
"""In the channel's memory: that of the aggregation, by name of the algorithm or call."""


@dataclass(frozen=True)
class Sender:
    """The client that sends an upload.

    Attributes:
        client_id: in [0, num_clients).
        round_idx: from 1.
        make_origin: gives the upload of a client whose training changed nothing.
        counted: names of the parts that are not learned: neither clipped, attacked nor encoded.
    """

    client_id: int
    round_idx: int
    make_origin: Callable[[], Tree]
    counted: Collection[str] = ()

    @cached_property
    def origin(self) -> Tree:
        """The upload of a client whose training changed nothing."""
        return self.make_origin()

    @property
    def path(self) -> tuple[int, int]:
        """Round and client, which random numbers are a function of."""
        return self.round_idx, self.client_id


class Arrival(NamedTuple):
    """A client's upload as the server receives it.

    Attributes:
        status: `trained`, `lost` on the way, or `rejected` on arrival.
        reason: of a rejection, or `clipped`; otherwise empty.
        num_bytes: size on arrival.
        upload: to aggregate; None if lost or rejected.
        kept: what the client keeps for its next upload: what the compression lost.
    """

    status: Status
    reason: str
    num_bytes: int
    upload: Tree | None
    kept: Tree = {}  # noqa: RUF012 - never changed


@dataclass(frozen=True)
class Channel:
    """Privacy, attacks, compression and faults of uploads, and the server's defences.

    Attributes:
        seed: of the run.
        aggregation: combines uploads.
        clip_norm: largest Euclidean norm of an upload's change; larger changes are scaled down
            to it. None is no bound.
        attack: replaces the uploads of attackers.
        attackers: ids of the clients that attack.
        faults: loses or damages uploads.
        privacy: clips changes and adds noise to them.
        compression: encodes changes.
        secure: hides all but the sum of uploads from the server.
        noise: purpose -> source of the noise of privacy, the same on all ranks.
        memory: what the server keeps of the channel from round to round; it is in checkpoints.
    """

    seed: int = 0
    aggregation: Aggregation = MEAN
    clip_norm: float | None = None
    attack: Attack = NO_ATTACK
    attackers: frozenset[int] = frozenset()
    faults: Faults = NO_FAULTS
    privacy: Privacy = NO_PRIVACY
    compression: Compression = NO_COMPRESSION
    secure: Secure = NO_SECURE
    noise: Callable[[str], NoiseSource] = field(
        default=lambda purpose: seeded_noise(0, purpose), compare=False
    )
    memory: Tree = field(default_factory=dict)

    @property
    def encodes_only(self) -> "Channel":
        """A channel with the same messages, and nothing else."""
        return Channel(seed=self.seed, compression=self.compression)

    @property
    def clip_limit(self) -> float | None:
        """Largest norm of a change that privacy allows in this round; None is no bound."""
        adapted = self.memory.get(CLIP_NORM)
        return self.privacy.clip_norm if adapted is None else float(adapted)

    def encode_broadcast(self, round_idx: int) -> Callable[[Tree], tuple[Tree, int]] | None:
        """Broadcast -> (what clients decode, bytes), if the compression is for downloads, too."""
        if not self.compression.downloads:
            return None

        def encode(broadcast: Tree) -> tuple[Tree, int]:
            weights = change_of(broadcast, {}, ())
            rng = generator(self.seed, "compression", round_idx)
            message, sent = transmit(self.compression, weights, rng)
            plain = num_bytes(broadcast) - num_bytes(weights)
            return with_learned(broadcast, {}, sent), len(message) + plain

        return encode

    def remembered(self, call: str) -> Tree:
        """The aggregation's memory of an algorithm or call; empty before its first round."""
        found: Tree = self.memory.get(AGGREGATION, {}).get(call, {})
        return found

    def remembering(self, call: str, memory: Tree) -> "Channel":
        """The channel of the next round, with the aggregation's memory of a call."""
        own = {**self.memory.get(AGGREGATION, {}), call: memory}
        return replace(self, memory={**self.memory, AGGREGATION: own})

    def colludes(self, client_id: int) -> bool:
        """Whether a client decides on its upload together with other attackers."""
        return self.attack.collude is not None and client_id in self.attackers

    def deliver(
        self,
        upload: Tree,
        sender: Sender,
        *,
        kept: Tree | None = None,
        agreed: Tree | None = None,
    ) -> Arrival:
        """Send an upload. The result depends on the arguments and the seed only.

        Args:
            upload: as the algorithm made it; finite.
            sender: of it.
            kept: what the compression lost of the client's earlier uploads.
            agreed: what the client sends instead, if it colludes with others.
        """
        if agreed is None:
            sent, is_clipped = self._meant(upload, sender)
        else:
            sent, is_clipped = agreed, False
        arrival = self._transmitted(upload, sent, sender, kept or {})
        if is_clipped and arrival.status == "trained":
            return arrival._replace(reason=CLIPPED)
        return arrival

    def _meant(self, upload: Tree, sender: Sender) -> tuple[Tree, bool]:
        """The upload as the client means to send it, and whether its change was too long.

        Attackers skip the clip and the noise of privacy.
        """
        if self._attacks(sender.client_id):
            if self.attack.upload is None:
                return upload, False
            attack, rng = self.attack.upload, generator(self.seed, "attack", *sender.path)
            origin = sender.origin
            return with_change(upload, origin, sender.counted, lambda x: attack(x, rng)), False
        limit = self.clip_limit
        if limit is None:
            return upload, False
        sent, is_clipped = _clipped(upload, sender, limit)
        if self.privacy.local_multiplier:
            std = self.privacy.local_multiplier * limit
            change = change_of(sent, sender.origin, sender.counted)
            noise = self.noise("local noise")(change, *sender.path)
            noisy = tree_map(lambda x, z: x + std * z, change, noise)
            sent = with_learned(sent, sender.origin, noisy)
        return sent, is_clipped

    def _attacks(self, client_id: int) -> bool:
        """Whether a client sends something else than it learned, from labels true or false."""
        return self._attack_uploads and client_id in self.attackers

    @property
    def _attack_uploads(self) -> bool:
        return self.attack.upload is not None or self.attack.collude is not None

    def _transmitted(self, upload: Tree, sent: Tree, sender: Sender, kept: Tree) -> Arrival:
        """Encode what is sent, let it pass the network, and check it on arrival."""
        size, attacked = num_bytes(sent), self._attacks(sender.client_id)
        # An attack may have overflowed: what is not finite is rejected on arrival.
        if self.compression.encode is not None and not (attacked and not all_finite(sent)):
            sent, kept, size = self._encoded(sent, sender, kept)
        arrived = self._in_transit(sent, sender)
        if arrived is None:
            return Arrival("lost", "", 0, None, kept)
        if arrived is not sent:
            size += num_bytes(arrived) - num_bytes(sent)
        # Clips, noise and encodings of honest clients keep leaves, and numbers finite.
        is_suspect = attacked or arrived is not sent
        reason = _defect(arrived, upload, sender.counted) if is_suspect else ""
        if reason:
            return Arrival("rejected", reason, size, None, kept)
        limit = self._server_limit
        if limit is None:
            return Arrival("trained", "", size, arrived, kept)
        clipped, is_clipped = _clipped(arrived, sender, limit)
        # Adaptive clipping counts whose change was too long before it was encoded.
        reason = CLIPPED if is_clipped and self.clip_norm is not None else ""
        return Arrival("trained", reason, size, clipped, kept)

    def _in_transit(self, sent: Tree, sender: Sender) -> Tree | None:
        """What faults leave of an upload; None if it is lost."""
        if self.faults.transit is None:
            return sent

        def scaled(factor: float) -> Tree:
            return with_change(sent, sender.origin, sender.counted, lambda x: factor * x)

        return self.faults.transit(sent, scaled, generator(self.seed, "transit", *sender.path))

    @property
    def _server_limit(self) -> float | None:
        """Bound that the server enforces; what is on the way may exceed that of privacy."""
        if self.clip_norm is not None:
            return self.clip_norm
        if self.privacy.central_noise is None or self.secure.make_round is not None:
            return None
        changes = self.compression.encode is not None or self.faults.transit is not None
        return self.clip_limit if changes or self._attack_uploads else None

    def _encoded(self, upload: Tree, sender: Sender, kept: Tree) -> tuple[Tree, Tree, int]:
        """The upload as the server decodes it, what the client keeps, and the size, bytes."""
        rng = generator(self.seed, "compression", *sender.path)
        change = change_of(upload, sender.origin, sender.counted)
        if self.compression.feedback:
            kept = kept or zeros(change)
            message, sent, kept = with_feedback(self.compression, change, kept, rng)
        else:
            message, sent = transmit(self.compression, change, rng)
        plain = num_bytes(upload) - num_bytes(change)
        return with_learned(upload, sender.origin, sent), kept, len(message) + plain


DIRECT = Channel()
"""Transmits uploads as they are."""


def _clipped(upload: Tree, sender: Sender, limit: float) -> tuple[Tree, bool]:
    """The upload with its change scaled down to a norm, and whether it was longer."""
    norm = change_norm(upload, sender.origin, sender.counted)
    if norm <= limit:
        return upload, False
    return with_scaled_change(upload, sender.origin, sender.counted, limit / norm), True


def _defect(upload: Tree, expected: Tree, counted: Collection[str]) -> str:
    """Why an upload is malformed; empty if it is not."""
    if structure(upload) != structure(expected):
        return MISFIT
    if not all_finite(upload):
        return NOT_FINITE
    return "" if counts_in_range(upload, counted) else MISCOUNTED
