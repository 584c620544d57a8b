"""The two sides of an upload: what a client does with its local result, and the server with that.

The client finishes, clips, noises and compresses; the server decodes, checks and clips. In a
deployment they are different machines.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.contract.downloads import Order
from flfast.channel.channel import Channel
from flfast.channel.compression.compression import with_feedback
from flfast.channel.sent import ClientReport, LocalResult, Sender, Sent, report_of
from flfast.channel.wire import LARGEST
from flfast.state.randomness import generator
from flfast.state.stack import structure
from flfast.state.tree import (
    Tree,
    add,
    all_finite,
    leaves,
    merge,
    part_of,
    sub,
    tree_map,
    zeros,
)
from flfast.state.vector import clipped, counts_in_range, learned, learned_norm, map_learned
from flfast.state.weights import WEIGHTS

DIVERGED = "NaN or infinity"
NOT_FINITE = "NaN or infinity on arrival"
MISFIT = "leaves of other names or shapes"
MISCOUNTED = "counts out of range"
TOO_LARGE = f"numbers beyond {LARGEST:g}"
CLIPPED = "clipped"


class Answer(NamedTuple):
    """What a client sends, and what it keeps for its next round.

    Attributes:
        sent: what the server gets.
        state: the client's new state.
        residual: what the compression lost of its uploads.
    """

    sent: Sent
    state: Tree
    residual: Tree


class ClientSide(NamedTuple):
    """What a client does with its local result. It reads nothing of other clients.

    Attributes:
        algorithm: what the clients were called for.
        channel: the run's channel; a client reads its privacy and compression.
    """

    algorithm: Algorithm
    channel: Channel

    def __call__(self, result: LocalResult, sender: Sender, residual: Tree) -> Answer:
        """The answer of an honest client that is real: a simulation calls the parts.

        `residual` is what the compression lost of its earlier uploads; empty at first.
        """
        upload, state = self.finish(result)
        if not self.is_finite(result, upload, state):
            return Answer(self.diverged(result, upload), result.context.client, residual)
        sent, residual = self.encode(self.protect(result, upload, sender), sender, residual)
        return Answer(sent, state, residual)

    def finish(self, result: LocalResult) -> tuple[Tree, Tree]:
        """The upload, and the client's new state.

        Raises:
            ValueError: if a stateless algorithm returns a state, or the upload is the weights.
        """
        upload, state = self.algorithm.finish(result.done, result.context)
        params = result.done.weights.get("params", {})
        if any(leaf is params.get(name) for name, leaf in upload.get("params", {}).items()):
            raise ValueError(
                f"algorithm={self.algorithm.name}: finish returns the weights, and uploads are "
                f"changes; return context.change(done.weights)"
            )
        if state and not self.algorithm.stateful:
            raise ValueError(
                f"algorithm={self.algorithm.name}: finish returns a client state, which would be "
                f"lost; define client_state, which gives a client's state before its first round"
            )
        return upload, state

    def is_finite(self, result: LocalResult, upload: Tree, state: Tree) -> bool:
        """Whether training did not diverge; if it did, the client keeps its old state."""
        return math.isfinite(result.loss_sum) and all_finite(upload) and all_finite(state)

    def plain(self, result: LocalResult, upload: Tree) -> Sent:
        """An upload as it is."""
        noisy = self.channel.privacy.central_noise is not None
        # No client may count more than the noise of the server hides.
        weight = 1.0 if noisy else self.algorithm.weight_of(result.done, result.context)
        return self._sent(result, upload, weight)

    def diverged(self, result: LocalResult, upload: Tree) -> Sent:
        """An upload that the server will reject."""
        return self._sent(result, upload, 0.0)._replace(is_finite=False)

    def _sent(self, result: LocalResult, upload: Tree, weight: float) -> Sent:
        done = result.done
        counts = done.num_examples, done.num_steps, result.num_seen
        return Sent(upload, b"", weight, *counts, result.loss_sum, logged=result.logged)

    def protect(self, result: LocalResult, upload: Tree, sender: Sender) -> Sent:
        """An upload with the clip and the noise of privacy."""
        sent, limit = self.plain(result, upload), self.channel.clip_limit
        if limit is None:
            return sent
        counted, privacy = self.algorithm.counted, self.channel.privacy
        upload, is_clipped = clipped(upload, counted, limit)
        if privacy.local_multiplier:
            std = privacy.local_multiplier * limit
            change = learned(upload, counted)
            noise = self.channel.noise("local noise")(change, *sender.path)
            upload = merge(upload, tree_map(lambda x, z: (x + std * z).to(x.dtype), change, noise))
        return sent._replace(upload=upload, is_clipped=is_clipped)

    def encode(self, sent: Sent, sender: Sender, residual: Tree) -> tuple[Sent, Tree]:
        """What is sent, compressed, and the new residual."""
        compression = self.channel.compression
        if compression.encode is None:
            return sent, residual
        change = learned(sent.upload, self.algorithm.counted)
        rng = generator(self.channel.seed, "compression", *sender.path)
        if compression.feedback:
            message, _, residual = with_feedback(
                compression, change, residual or zeros(change), rng
            )
        else:
            message = compression.encode(change, rng)
        upload = merge(sent.upload, tree_map(lambda leaf: leaf.to("meta"), change))
        return sent._replace(upload=upload, message=message), residual


class ServerSide(NamedTuple):
    """What the server does with what a client sent.

    Attributes:
        algorithm: what the clients were called for.
        channel: the run's channel; the server reads its compression, clip and privacy.
    """

    algorithm: Algorithm
    channel: Channel

    def __call__(self, sender: Sender, sent: Sent) -> ClientReport:
        """The report of what a client sent that is real: a simulation calls the parts."""
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
