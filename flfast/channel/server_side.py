"""The server's side of an upload: decode, check, clip, add to the reduction."""

from typing import NamedTuple

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.contract.downloads import Order
from flfast.channel.channel import Channel
from flfast.channel.sent import ClientReport, Sender, Sent, report_of
from flfast.channel.wire import LARGEST
from flfast.state.randomness import generator
from flfast.state.stack import structure
from flfast.state.tree import Tree, add, all_finite, leaves, merge, part_of, sub
from flfast.state.vector import clipped, counts_in_range, learned, learned_norm, map_learned
from flfast.state.weights import WEIGHTS

DIVERGED = "NaN or infinity"
NOT_FINITE = "NaN or infinity on arrival"
MISFIT = "leaves of other names or shapes"
MISCOUNTED = "counts out of range"
TOO_LARGE = f"numbers beyond {LARGEST:g}"
CLIPPED = "clipped"


class ServerSide(NamedTuple):
    """What the server does with what a client sent.

    Attributes:
        algorithm: what the clients were called for.
        channel: the run's channel; the server reads its compression, clip and privacy.
    """

    algorithm: Algorithm
    channel: Channel

    def __call__(self, sender: Sender, sent: Sent) -> ClientReport:
        """The report of what a client sent over a network without faults."""
        report = report_of(sender.client_id, sent, sent.num_bytes)
        if not sent.is_finite:
            return report.refused(DIVERGED)
        return self.accept(report, self.decode(sender, sent), sent, expected=sent.upload)

    def from_outside(self, sender: Sender, sent: Sent, expected: Tree, num: int) -> ClientReport:
        """The report of what a real client sent, which may be anything.

        `expected` gives names, shapes and dtypes of the leaves that the server wants, and `num` is
        how many training examples the client has.
        """
        report = report_of(sender.client_id, sent, sent.num_bytes)
        reason = self._overstated(sent, num) if sent.is_finite else DIVERGED
        if reason:
            return report.refused(reason)
        encodes, counted = self.channel.compression.encode is not None, self.algorithm.counted
        coded = {id(leaf) for leaf in leaves(learned(sent.upload, counted))} if encodes else {}
        is_whole = all(leaf.is_meta == (id(leaf) in coded) for leaf in leaves(sent.upload))
        if not is_whole or structure(sent.upload) != structure(expected):
            return report.refused(MISFIT)
        try:
            upload = self.decode(sender, sent)
        except Exception:  # noqa: BLE001 - a message that no encoder has made may raise anything
            return report.refused(MISFIT)
        report = self.accept(report, upload, sent, expected=expected)
        if report.upload is None or self.channel.secure.make_round is not None:
            return report
        if any(_largest(leaf) > LARGEST for leaf in leaves(report.upload)):
            return report.refused(TOO_LARGE)
        return self._clipped(report, report.upload)

    def _overstated(self, sent: Sent, num: int) -> str:
        """Which of an upload's counts cannot be, for a client with `num` training examples."""
        weight = sent.weight if self.algorithm.has_own_weights else float(sent.num_examples)
        if self.channel.privacy.central_noise is not None or self.algorithm.weighs_equally:
            weight = 1.0
        if self.channel.secure.make_round is not None:
            weight = 0.0  # it is masked, too
        if sent.num_examples > num:
            return f"{MISCOUNTED}: num_examples={sent.num_examples}; allowed: 0 to {num}"
        if sent.weight != weight:
            return f"{MISCOUNTED}: weight={sent.weight:g}; allowed: {weight:g}"
        return ""

    def _clipped(self, report: ClientReport, upload: Tree) -> ClientReport:
        """A report with the clip of privacy, for clients that did not clip their changes."""
        limit, counted = self.channel.clip_limit, self.algorithm.counted
        if limit is None or self.channel.privacy.central_noise is None:
            return report
        # A change that was clipped is longer than the limit by the rounding of its data type.
        types = {leaf.dtype for leaf in leaves(learned(upload, counted))}
        slack = 1 + max((torch.finfo(dtype).eps for dtype in types), default=0.0)
        if learned_norm(upload, counted) <= slack * limit:
            return report
        return report._replace(reason=CLIPPED, upload=clipped(upload, counted, limit)[0])

    def decode(self, sender: Sender, sent: Sent) -> Tree:
        """The upload."""
        decode = self.channel.compression.decode
        if decode is None or not any(leaf.is_meta for leaf in leaves(sent.upload)):
            return sent.upload
        rng = generator(self.channel.seed, "compression", *sender.path)
        like = learned(sent.upload, self.algorithm.counted)
        return merge(sent.upload, decode(sent.message, like, rng))

    def accept(
        self, report: ClientReport, upload: Tree, sent: Sent, *, expected: Tree | None
    ) -> ClientReport:
        """Check and clip an upload, and put it into its report.

        It is decoded, and came with `sent`. `expected` gives names, shapes and dtypes of its
        leaves, and may have meta tensors. None: the upload is known to be whole.
        """
        defect = "" if expected is None else _defect(upload, expected, self.algorithm.counted)
        if defect:
            return report.refused(defect)
        reason, limit = CLIPPED if sent.is_clipped else "", self.channel.server_limit
        if limit is not None:
            upload, is_clipped = clipped(upload, self.algorithm.counted, limit)
            # Adaptive clipping counts whose change was too long before it was encoded.
            if is_clipped and self.channel.clip_norm is not None:
                reason = CLIPPED
        return report._replace(reason=reason, upload=upload)

    def up_to_date(self, upload: Tree, order: Order, received: Tree, now: Tree) -> Tree:
        """An upload as a change of the server's current model, discounted if it is stale.

        The client trained from the broadcast `received`, the current model's is `now`.
        """
        if order.mixes:
            # The client's model minus the current one, instead of the one that it downloaded.
            models = {name: part for name, part in upload.items() if name in WEIGHTS}
            upload = add(upload, sub(part_of(received, models), part_of(now, models)))
        if order.scale == 1:
            return upload
        fixed = self.algorithm.counted | self.algorithm.undiscounted
        return map_learned(lambda leaf: order.scale * leaf, upload, fixed)


def _largest(leaf: Tensor) -> float:
    """The largest absolute value of a leaf."""
    values = leaf.abs() if leaf.is_complex() else leaf.double().abs()
    return float(values.max()) if leaf.numel() else 0.0


def _defect(upload: Tree, expected: Tree, counted: frozenset[str]) -> str:
    """Why an upload is malformed; empty if it is not."""
    if structure(upload) != structure(expected):
        return MISFIT
    if not all_finite(upload):
        return NOT_FINITE
    return "" if counts_in_range(upload, counted) else MISCOUNTED
