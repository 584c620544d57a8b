"""The reports of a round: one per client, and the mean of the uploads."""

from collections.abc import Mapping
from typing import NamedTuple

from flfast.algorithms.contract import Uploads
from flfast.channel.server_side import NOT_SELECTED, Status


class ClientReport(NamedTuple):
    """One client's round.

    Attributes:
        client_id: in [0, num_clients).
        num_examples: distinct training examples used.
        num_seen: training examples processed, or tokens of `language`; once per epoch.
        num_steps: local steps taken.
        loss: mean local training loss over the examples seen.
        up_bytes: size of the upload on arrival.
        status: status of the upload: `trained`, `lost`, `late` or `rejected`.
        reason: reason of a rejection, or `clipped`; otherwise empty.
        seconds: of a family, its share of the time in which its rank trained clients with its
            model; otherwise 0.
        logged: what a user's module logged, by name: means over the examples seen.
    """

    client_id: int
    num_examples: int
    num_seen: int
    num_steps: int
    loss: float
    up_bytes: int
    status: Status = "trained"
    reason: str = ""
    seconds: float = 0.0
    logged: Mapping[str, float] = {}

    @property
    def rejected(self) -> bool:
        """Whether the upload arrived but was not aggregated."""
        return self.status == "rejected"

    @property
    def accepted(self) -> bool:
        """Whether the upload was valid, even if the aggregation rule did not select it."""
        return self.status == "trained" or self.reason == NOT_SELECTED


class Trained(NamedTuple):
    """The result of a cohort's round.

    Attributes:
        uploads: as the server step gets them; None if too few arrived.
        reports: one per client, in the order of the cohort.
        shortage: the reason if too few uploads arrived; otherwise empty.
        down_bytes: that each client downloaded.
    """

    uploads: Uploads | None
    reports: list[ClientReport]
    shortage: str
    down_bytes: int
