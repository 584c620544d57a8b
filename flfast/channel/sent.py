"""A client's local result, `Sent`: all of it that leaves the client, and what becomes of that."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from flfast.algorithms.contract import Context, Finished
from flfast.state.tree import Tree, leaves

Status = Literal["trained", "lost", "late", "rejected"]
NOT_SELECTED = "not selected"


class LocalResult(NamedTuple):
    """The result of a client's local training.

    Attributes:
        client_id: in [0, num_clients).
        context: what it trained with.
        done: weights, counts and optimizer state.
        num_seen: training examples processed, or tokens of `language`; once per epoch.
        loss_sum: sum of the local objective over the examples seen.
        logged: what a user's module logged, by name: means over the examples seen.
    """

    client_id: int
    context: Context
    done: Finished
    num_seen: int
    loss_sum: float
    logged: Mapping[str, float] = {}


class Sender(NamedTuple):
    """The client that sends an upload.

    Attributes:
        client_id: in [0, num_clients).
        round_idx: from 1.
    """

    client_id: int
    round_idx: int

    @property
    def path(self) -> tuple[int, int]:
        """Round and client, which random numbers are a function of."""
        return self.round_idx, self.client_id


class Sent(NamedTuple):
    """All that a client sends to the server in a call. Nothing else leaves the client.

    With secure aggregation, upload and weight are masked on the way (`secure_reduction.py`).

    Attributes:
        upload: what `finish` returned, after clip and noise of privacy. Leaves that are in the
            message are meta tensors, which give their shapes and dtypes.
        message: the learned leaves, encoded; empty without a compression.
        weight: the upload's weight in means, >= 0.
        num_examples: distinct training examples used.
        num_steps: local steps taken.
        num_seen: training examples processed, or tokens of `language`; once per epoch.
        loss_sum: sum of the local objective over the examples seen.
        is_clipped: whether the change was longer than the bound of privacy.
        is_finite: whether training ended without NaN and infinity.
        logged: what a user's module logged, by name: means over the examples seen.
    """

    upload: Tree
    message: bytes
    weight: float
    num_examples: int
    num_steps: int
    num_seen: int
    loss_sum: float
    is_clipped: bool = False
    is_finite: bool = True
    logged: Mapping[str, float] = {}

    @property
    def num_bytes(self) -> int:
        """Size of message and upload."""
        plain = (leaf for leaf in leaves(self.upload) if not leaf.is_meta)
        return len(self.message) + sum(leaf.numel() * leaf.element_size() for leaf in plain)


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
