"""What a round of a cohort reports."""

from typing import NamedTuple

from flfast.server.channel import NOT_SELECTED, Status
from flfast.state.tree import Tree


class ClientReport(NamedTuple):
    """What is known of one client's round.

    Attributes:
        client_id: in [0, num_clients).
        num_examples: distinct training examples used.
        num_seen: training examples processed, every pass counted.
        num_steps: local steps taken.
        loss: mean local training loss over the examples seen.
        up_bytes: size of the upload, as it arrived.
        status: what became of the upload.
        reason: why, or what was done to it; empty for most.
    """

    client_id: int
    num_examples: int
    num_seen: int
    num_steps: int
    loss: float
    up_bytes: int
    status: Status = "trained"
    reason: str = ""

    @property
    def rejected(self) -> bool:
        """Whether the upload arrived and was left out of the mean."""
        return self.status == "rejected"

    @property
    def accepted(self) -> bool:
        """Whether the upload was valid, even if the aggregation rule did not select it."""
        return self.status == "trained" or self.reason == NOT_SELECTED


class Trained(NamedTuple):
    """A cohort's round.

    Attributes:
        mean: of the uploads, by the aggregation rule; None if too few clients delivered one.
        reports: one per client of the cohort, in its order.
        shortage: what is missing if too few did; otherwise empty.
    """

    mean: Tree | None
    reports: list[ClientReport]
    shortage: str = ""
