"""A client's local result, which stays with it, and `Sent`: all of it that reaches the server."""

from collections.abc import Mapping
from typing import NamedTuple

from flfast.algorithms.contract import Context, Finished
from flfast.state.tree import Tree, leaves


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
