"""Delivers a client's result to the server: finish, channel, reduction, report.

Every engine calls a `Delivery` after each client's local training. The algorithm's `finish` makes
the upload and the new client state, `server/channel.py` transmits the upload, and
`server/reduction.py` adds it to the aggregate.
"""

import math
from collections.abc import Callable
from functools import partial

from flfast.algorithms.downloads import Downloads
from flfast.engines.local_training import LocalResult
from flfast.engines.reports import ClientReport
from flfast.engines.site import Site
from flfast.plan import RoundPlan
from flfast.server.channel import DIVERGED, Arrival, Channel
from flfast.server.reduction import Reduction
from flfast.state.tree import Tree, all_finite, num_bytes
from flfast.state.vector import moved


class Delivery:
    """Delivers the results of one round.

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
        self._site, self._channel, self._reduction = site, channel, reduction
        self._downloads, self._plan, self._on_client = downloads, plan, on_client
        self.reports: list[ClientReport] = []

    def __call__(self, result: LocalResult) -> None:
        """Keep the client's new state, add its upload to the reduction, and report."""
        done, arrival = result.done, self._arrival(result)
        if arrival.upload is not None:
            weight = self._site.algorithm.weight_of(done, result.context)
            upload = self._up_to_date(result, arrival.upload)
            self._reduction.add(result.client_id, upload, weight)
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
        """The upload as if it had been trained from the server's current model."""
        order = self._downloads.orders.get(result.client_id)
        if order is None or order.version is None:
            return upload
        if order.scale == 1 and order.version.plan.round_idx == self._plan.round_idx:
            return upload
        algorithm = self._site.algorithm
        now = algorithm.origin(self._downloads.broadcast)
        start = now if order.mixes else algorithm.origin(result.context.server)
        scales = {
            name: 1.0 if name in algorithm.undiscounted else order.scale
            for name in upload.keys() - algorithm.counted
        }
        return moved(upload, start, now, scales)

    def _arrival(self, result: LocalResult) -> Arrival:
        """Store the client's new state and transmit its upload.

        A client whose training diverged keeps its old state, and its upload is rejected.
        """
        algorithm, context = self._site.algorithm, result.context
        upload, state = algorithm.finish(result.done, context)
        if state and not algorithm.stateful:
            raise ValueError(
                f"algorithm={algorithm.name}: finish returns a client state, which would be lost; "
                f"define client_state, which gives a client's state before its first round"
            )
        finite = math.isfinite(result.loss_sum) and all_finite(upload) and all_finite(state)
        if not finite:
            return Arrival("rejected", DIVERGED, num_bytes(upload), None)
        if algorithm.stateful:
            self._site.states.put(result.client_id, state)
        return self._channel.deliver(
            upload,
            partial(algorithm.origin, context.server),
            round_idx=self._downloads.plan(result.client_id, self._plan).round_idx,
            client_id=result.client_id,
            counted=algorithm.counted,
        )
