"""The reports of a round: one per client, and the mean of the uploads."""

from typing import NamedTuple

from torch import Tensor

from flfast.channel.server_side import NOT_SELECTED, Status
from flfast.state.tree import Tree


class ClientReport(NamedTuple):
    """One client's round.

    Attributes:
        client_id: in [0, num_clients).
        num_examples: distinct training examples used.
        num_seen: training examples processed, or tokens of `language`; once per epoch.
        num_steps: local steps taken.
        loss: mean local training loss over the examples seen.
        up_bytes: size of the upload on arrival.
        status: of the upload: `trained`, `lost` or `rejected`.
        reason: of a rejection, or `clipped`; otherwise empty.
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
        """Whether the upload arrived but was not aggregated."""
        return self.status == "rejected"

    @property
    def accepted(self) -> bool:
        """Whether the upload was valid, even if the aggregation rule did not select it."""
        return self.status == "trained" or self.reason == NOT_SELECTED


class Trained(NamedTuple):
    """The result of a cohort's round.

    Attributes:
        mean: the uploads combined by the aggregation rule; None if too few arrived.
        reports: one per client, in the order of the cohort.
        num_clients: whose uploads were aggregated; with noise of the server, the mean number.
        shortage: the reason if too few arrived; otherwise empty.
        rows: parts of the uploads that are not combined, each leaf [K, ...].
        clients: ids of the rows, int64 [K].
        weights: of the rows, float64 [K].
        down_bytes: that each client downloaded.
        sent: what the algorithm sent the clients of the rows, each leaf [K, ...].
    """

    mean: Tree | None
    reports: list[ClientReport]
    num_clients: float
    shortage: str
    rows: Tree
    clients: Tensor
    weights: Tensor
    down_bytes: int
    sent: Tree
