"""The channel: what happens to an upload between local training and the reduction.

    upload -> clip and noise of privacy -> attack -> compression -> faults -> checks and clip

`engines/delivery.py` sends each upload through it before it adds the upload to the reduction.
An upload is a change. Every step acts on its learned parts.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from flfast.channel.aggregations.aggregation import MEAN, Aggregation
from flfast.channel.attacks.attack import NO_ATTACK, Attack
from flfast.channel.compression.compression import NO_COMPRESSION, Compression, transmit
from flfast.channel.faults.fault import NO_FAULTS, Faults
from flfast.channel.privacy.noise_sources import seeded_noise
from flfast.channel.privacy.privacy import NO_PRIVACY, NoiseSource, Privacy
from flfast.channel.secure.secure import NO_SECURE, Secure
from flfast.channel.sent import Sender
from flfast.state.randomness import generator
from flfast.state.tree import Tree, merge, num_bytes
from flfast.state.vector import learned, map_learned

CLIP_NORM = "clip_norm"
"""In the channel's memory: the bound of adaptive clipping, float64 []."""
NOISE = "noise"
"""In the channel's memory: noise of earlier rounds, which later noise cancels."""
AGGREGATION = "aggregation"
"""In the channel's memory: that of the aggregation, by name of the algorithm or call."""


@dataclass(frozen=True)
class Channel:
    """Privacy, attacks, compression and faults of uploads, and the server's defences.

    Attributes:
        seed: seed of the run.
        aggregation: combines uploads.
        clip_norm: largest Euclidean norm of an upload's learned parts; larger ones are scaled
            down to it. None is no bound.
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
    def is_direct(self) -> bool:
        """Whether every upload arrives as `finish` made it, and counts by its own weight."""
        return self.only_clips and not self.clips and self.privacy.central_noise is None

    @property
    def only_clips(self) -> bool:
        """Whether every upload arrives as `finish` made it, except for `clips`."""
        attack, coded, faults = self.attack, self.compression.encode, self.faults.transit
        changes = attack.upload, attack.collude, coded, faults, self.secure.make_round
        return not self.privacy.local_multiplier and all(option is None for option in changes)

    @property
    def clips(self) -> list[float]:
        """Bounds of an upload's norm: first that of privacy, then the server's."""
        return [limit for limit in (self.clip_limit, self.server_limit) if limit is not None]

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
            weights = learned(broadcast, ())
            rng = generator(self.seed, "compression", round_idx)
            message, sent = transmit(self.compression, weights, rng)
            plain = num_bytes(broadcast) - num_bytes(weights)
            return merge(broadcast, sent), len(message) + plain

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

    def attacked(self, upload: Tree, sender: Sender, counted: Collection[str]) -> Tree:
        """What an attacker sends instead of an upload, without clip and noise of privacy."""
        attack, rng = self.attack.upload, generator(self.seed, "attack", *sender.path)
        assert attack is not None, "attackers who collude decide together"
        return map_learned(lambda leaf: attack(leaf, rng), upload, counted)

    def attacks(self, client_id: int) -> bool:
        """Whether a client sends something else than it learned, from labels true or false."""
        return self._attacks_uploads and client_id in self.attackers

    @property
    def _attacks_uploads(self) -> bool:
        return self.attack.upload is not None or self.attack.collude is not None

    def in_transit(self, upload: Tree, sender: Sender, counted: Collection[str]) -> Tree | None:
        """What faults leave of an upload; None if it is lost."""
        if self.faults.transit is None:
            return upload

        def scaled(factor: float) -> Tree:
            return map_learned(lambda leaf: factor * leaf, upload, counted)

        return self.faults.transit(upload, scaled, generator(self.seed, "transit", *sender.path))

    @property
    def server_limit(self) -> float | None:
        """Bound that the server enforces; what is on the way may exceed that of privacy."""
        if self.clip_norm is not None:
            return self.clip_norm
        if self.privacy.central_noise is None or self.secure.make_round is not None:
            return None
        changes = self.compression.encode is not None or self.faults.transit is not None
        return self.clip_limit if changes or self._attacks_uploads else None


DIRECT = Channel()
"""Transmits uploads as they are."""
