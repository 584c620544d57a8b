"""Delivers a client's result to the server: finish, channel, reduction, report.

Every engine calls a `Delivery` after each client's local training. The algorithm's `finish` makes
the upload and the new client state, `channel/channel.py` transmits the upload, and
`channel/reduction.py` adds it to the aggregate. Attackers who collude wait for each other.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from flfast.algorithms.contract.downloads import Downloads, Order
from flfast.channel.channel import DIVERGED, Arrival, Channel, Sender
from flfast.channel.reduction import Reduction
from flfast.distributed.world import World, gather
from flfast.engines.local_training import LocalResult
from flfast.engines.reports import ClientReport
from flfast.engines.site import Site
from flfast.state.plan import RoundPlan
from flfast.state.randomness import generator
from flfast.state.tree import Tree, add, all_finite, merge, num_bytes, part_of, sub, tree_map
from flfast.state.vector import from_vectors, learned, map_learned, to_vectors
from flfast.state.weights import WEIGHTS


class _Finished(NamedTuple):
    """A client's upload and its new state."""

    result: LocalResult
    upload: Tree
    state: Tree
    sender: Sender


class Delivery:
    """Delivers the results of one call.

    Args:
        site: of this rank.
        channel: transmits uploads.
        reduction: collects the uploads that arrive.
        downloads: of the call.
        plan: of the call.
        on_client: called with each report.

    Attributes:
        reports: one per client delivered, in order.
    """

    def __init__(
        self,
        site: Site,
        channel: Channel,
        reduction: Reduction,
        downloads: Downloads,
        plan: RoundPlan,
        on_client: Callable[[ClientReport], None],
    ) -> None:
        self._site, self._channel = site, channel
        self._reduction, self._downloads = reduction, downloads
        self._plan, self._on_client = plan, on_client
        self._colluding: list[_Finished] = []
        self.reports: list[ClientReport] = []

    def __call__(self, result: LocalResult) -> None:
        """Keep the client's new state, add its upload to the reduction, and report."""
        algorithm, context = self._site.algorithm, result.context
        upload, state = algorithm.finish(result.done, context)
        if state and not algorithm.stateful:
            raise ValueError(
                f"algorithm={algorithm.name}: finish returns a client state, which would be lost; "
                f"define client_state, which gives a client's state before its first round"
            )
        finite = math.isfinite(result.loss_sum) and all_finite(upload) and all_finite(state)
        if not finite:  # it keeps its old state
            self._report(result, Arrival("rejected", DIVERGED, num_bytes(upload), None))
            return
        sender = Sender(
            result.client_id,
            self._downloads.plan(result.client_id, self._plan).round_idx,
            algorithm.counted,
        )
        finished = _Finished(result, upload, state, sender)
        if self._channel.colludes(result.client_id):
            self._colluding.append(finished)
        else:
            self._deliver(finished)

    def close(self, world: World) -> None:
        """Deliver the uploads of attackers who collude, after all others; collective."""
        collude = self._channel.attack.collude
        if collude is None:
            return
        counted = self._site.algorithm.counted
        own = {one.sender.client_id: learned(one.upload, counted) for one in self._colluding}
        changes = {client_id: to_vectors(change, ())[0] for client_id, change in own.items()}
        everybody = {k: vector for part in gather(world, changes) for k, vector in part.items()}
        if not everybody:
            return
        attackers = sorted(everybody)
        rows = torch.stack([everybody[client_id] for client_id in attackers])
        rng = generator(self._channel.seed, "collusion", self._plan.round_idx)
        poisoned = dict(
            zip(attackers, collude(rows, self._downloads.num_clients, rng), strict=True)
        )
        for one in self._colluding:
            vector = poisoned[one.sender.client_id]
            honest = own[one.sender.client_id]
            change = from_vectors(vector, vector[:0], honest, ())
            change = tree_map(lambda x, like: x.to(like.dtype), change, honest)
            self._deliver(one, agreed=merge(one.upload, change))

    def _deliver(self, finished: _Finished, agreed: Tree | None = None) -> None:
        """Transmit an upload, store the client's state, and aggregate what arrived."""
        result, upload, state, sender = finished
        arrival = self._channel.deliver(
            upload,
            sender,
            kept=self._site.residual(sender.client_id),
            agreed=agreed,
        )
        self._site.keep_state(sender.client_id, state, arrival.kept)
        if arrival.upload is not None:
            up_to_date = self._up_to_date(result, arrival.upload)
            self._reduction.add(sender.client_id, up_to_date, self._weight(result))
        self._report(result, arrival)

    def _weight(self, result: LocalResult) -> float:
        if self._channel.privacy.central_noise is not None:
            return 1.0  # no client may count more than the noise hides
        return self._site.algorithm.weight_of(result.done, result.context)

    def _report(self, result: LocalResult, arrival: Arrival) -> None:
        done = result.done
        report = ClientReport(
            client_id=result.client_id,
            num_examples=done.num_examples,
            num_seen=result.num_seen,
            num_steps=done.num_steps,
            loss=result.loss_sum / max(result.num_seen, 1),
            up_bytes=arrival.num_bytes,
            status=arrival.status,
            reason=arrival.reason,
        )
        self.reports.append(report)
        self._on_client(report)

    def _up_to_date(self, result: LocalResult, upload: Tree) -> Tree:
        """The upload as a change of the server's current model, discounted if it is stale."""
        order = self._downloads.orders.get(result.client_id, Order())
        if order.mixes:
            # The client's model minus the current one, instead of the one that it downloaded.
            models = {name: part for name, part in upload.items() if name in WEIGHTS}
            received, now = result.context.server, self._downloads.exact
            upload = add(upload, sub(part_of(received, models), part_of(now, models)))
        if order.scale == 1:
            return upload
        algorithm = self._site.algorithm
        return map_learned(
            lambda leaf: order.scale * leaf, upload, algorithm.counted | algorithm.undiscounted
        )
