"""What becomes of a client's upload in a call: what arrived, and whether it is aggregated."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from flfast.channel.sent import Sent
from flfast.state.tree import Tree

Status = Literal["trained", "lost", "late", "rejected"]
NOT_SELECTED = "not selected"


class ClientReport(NamedTuple):
    """One client's call.

    Attributes:
        client_id: in [0, num_clients).
        num_examples: distinct training examples used.
        num_seen: training examples processed, or tokens of `language`; once per epoch.
        num_steps: local steps taken.
        loss: mean local training loss over the examples seen.
        up_bytes: size of the upload on arrival.
        status: status of the upload: `trained`, `lost` on the way, `late` after enough others, or
            `rejected`.
        reason: reason of a rejection, or `clipped`; otherwise empty.
        seconds: of a family, its share of the time in which its rank trained clients with its
            model; otherwise 0.
        logged: what a user's module logged, by name: means over the examples seen.
        upload: to aggregate; None if it is not, or was.
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
    upload: Tree | None = None

    @property
    def rejected(self) -> bool:
        """Whether the upload arrived but was not aggregated."""
        return self.status == "rejected"

    @property
    def accepted(self) -> bool:
        """Whether the upload was valid, even if the aggregation rule did not select it."""
        return self.status == "trained" or self.reason == NOT_SELECTED

    def refused(self, reason: str) -> "ClientReport":
        """The report of this upload if it is not to be aggregated."""
        return self._replace(status="rejected", reason=reason, upload=None)


def report_of(client_id: int, sent: Sent, num_bytes: int) -> ClientReport:
    """The report of an upload that has arrived in so many bytes, before it is looked at."""
    counts = sent.num_examples, sent.num_seen, sent.num_steps
    loss = sent.loss_sum / max(sent.num_seen, 1)
    return ClientReport(client_id, *counts, loss, num_bytes, logged=sent.logged)


def silent(client_id: int, status: Status, reason: str = "") -> ClientReport:
    """The report of a client of whom nothing came."""
    return ClientReport(client_id, 0, 0, 0, 0.0, 0, status, reason)
