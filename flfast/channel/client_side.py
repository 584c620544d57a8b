"""The client's side of an upload: finish, clip and noise of privacy, compression."""

import math
from typing import NamedTuple

from flfast.algorithms.contract import Algorithm
from flfast.channel.channel import Channel
from flfast.channel.compression.compression import with_feedback
from flfast.channel.sent import LocalResult, Sender, Sent
from flfast.state.randomness import generator
from flfast.state.tree import Tree, all_finite, merge, tree_map, zeros
from flfast.state.vector import clipped, learned


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
        """The answer of an honest client.

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
