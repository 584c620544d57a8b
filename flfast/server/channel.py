"""The channel: what lies between a client's local training and the mean of the uploads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flfast.aggregations.aggregation import MEAN, Aggregation
from flfast.attacks.attack import NO_ATTACK, Attack
from flfast.faults.fault import NO_FAULTS, Faults
from flfast.randomness import generator
from flfast.state.stack import structure
from flfast.state.tree import Tree, all_finite, num_bytes
from flfast.state.vector import change_norm, counts_in_range, with_change

Status = Literal["trained", "lost", "rejected"]
DIVERGED = "NaN or infinity"
NOT_FINITE = "NaN or infinity on arrival"
MISFIT = "leaves of other names or shapes"
MISCOUNTED = "counts out of range"
CLIPPED = "clipped"
NOT_SELECTED = "not selected"


class Arrival(NamedTuple):
    """What the server has of a client's upload.

    Attributes:
        status: `trained`, `lost` on the way, or `rejected` on arrival.
        reason: of a rejection, or what else was done to it; empty for most.
        num_bytes: that arrived.
        upload: what counts; None if nothing does.
    """

    status: Status
    reason: str
    num_bytes: int
    upload: Tree | None


@dataclass(frozen=True)
class Channel:
    """Who may tamper with uploads on their way, and what the server does about it.

    Attributes:
        seed: of the run.
        aggregation: how uploads become one.
        clip_norm: most that an upload may change, in Euclidean norm; longer changes are scaled
            down to it. None is no bound.
        attack: what attackers upload.
        attackers: who they are.
        faults: what gets lost or broken.
    """

    seed: int = 0
    aggregation: Aggregation = MEAN
    clip_norm: float | None = None
    attack: Attack = NO_ATTACK
    attackers: frozenset[int] = frozenset()
    faults: Faults = NO_FAULTS

    def deliver(
        self, upload: Tree, origin: Callable[[], Tree], *, round_idx: int, client_id: int
    ) -> Arrival:
        """What the server makes of an upload; a function of it, the seed, the round and client.

        Args:
            upload: finite, as the algorithm made it.
            origin: gives what it would be had the client learned nothing.
            round_idx: from 1.
            client_id: in [0, num_clients).
        """
        sent, path = upload, (round_idx, client_id)
        if self.attack.upload is not None and client_id in self.attackers:
            attack, rng = self.attack.upload, generator(self.seed, "attack", *path)
            sent = with_change(upload, origin(), lambda change: attack(change, rng))
        if self.faults.transit is not None:
            arrived = self.faults.transit(sent, origin(), generator(self.seed, "transit", *path))
            if arrived is None:
                return Arrival("lost", "", 0, None)
            sent = arrived
        size = num_bytes(sent)
        if sent is not upload:
            reason = _defect(sent, upload)
            if reason:
                return Arrival("rejected", reason, size, None)
        return self._clipped(sent, origin, size)

    def _clipped(self, upload: Tree, origin: Callable[[], Tree], size: int) -> Arrival:
        if self.clip_norm is not None:
            start = origin()
            norm = change_norm(upload, start)
            if norm > self.clip_norm:
                share = self.clip_norm / norm
                clipped = with_change(upload, start, lambda change: share * change)
                return Arrival("trained", CLIPPED, size, clipped)
        return Arrival("trained", "", size, upload)


def _defect(upload: Tree, expected: Tree) -> str:
    if structure(upload) != structure(expected):
        return MISFIT
    if not all_finite(upload):
        return NOT_FINITE
    return "" if counts_in_range(upload) else MISCOUNTED
