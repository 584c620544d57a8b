"""Simulates the way of uploads: a client's side, attackers and faults, the server's side.

Every engine calls a `Delivery` with the results of local training, of one client or of a stack. A
deployment has `ClientSide` and `ServerSide` on different machines, and neither of what is between
them here. Attackers who collude wait for each other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from operator import itemgetter
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.algorithms.contract import Uploads
from flfast.algorithms.contract.downloads import Downloads, Order
from flfast.channel.channel import Channel
from flfast.channel.reduced import Reduced, Reduction, Specs
from flfast.channel.reduction import MeanReduction
from flfast.channel.row_reduction import RowReduction
from flfast.channel.sent import NOT_SELECTED, ClientReport, LocalResult, Sender, Sent, report_of
from flfast.channel.sides import CLIPPED, DIVERGED, ClientSide, ServerSide
from flfast.distributed.world import World, common_spec, gather
from flfast.engines.local_training import TrainedStack
from flfast.engines.site import Site
from flfast.engines.stack_uploads import (
    WAIT_SECONDS,
    Waiting,
    add_large,
    change_rows,
    device_uploads,
    finite_rows,
    known,
)
from flfast.state.machine import LARGE_BYTES
from flfast.state.plan import RoundPlan
from flfast.state.randomness import generator
from flfast.state.tree import Tree, all_finite, leaves, merge, num_bytes, tree_map
from flfast.state.vector import from_vectors, learned, to_vectors


@dataclass(frozen=True)
class Delivery:
    """Delivers the results of one call, and calls `on_client` with each report.

    Attributes:
        site: whose algorithm the clients were called for, and where they keep their states.
        channel: transmits uploads.
        reduction: collects them.
        downloads: what the clients got.
        plan: of the call.
        on_client: gets each report.
        reports: one per client delivered, in order.
        seconds: see `ClientReport`, by client, as far as measured.
        colluding: (result, upload, new state) of attackers who wait for each other.
        waiting: stacks whose uploads were added on a GPU, and are not reported yet.
    """

    site: Site
    channel: Channel
    reduction: Reduction
    downloads: Downloads
    plan: RoundPlan
    on_client: Callable[[ClientReport], None]
    reports: list[ClientReport] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    colluding: list[tuple[LocalResult, Tree, Tree]] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)

    @cached_property
    def _client(self) -> ClientSide:
        return ClientSide(self.site.algorithm, self.channel)

    @cached_property
    def _server(self) -> ServerSide:
        return ServerSide(self.site.algorithm, self.channel)

    @cached_property
    def _adds_changes(self) -> bool:
        """Whether uploads are changes that are at most clipped, and clients keep nothing."""
        orders = self.downloads.orders.values()
        return (
            self.channel.only_clips
            and self.site.algorithm.uploads_changes
            and not self.site.keeps_states
            and not any(order.mixes or order.scale != 1 for order in orders)
        )

    def for_site(self, site: Site) -> "Delivery":
        """This delivery, for clients with the model of another site; reports are shared."""
        states, records = self.site.states, self.site.records
        return replace(self, site=replace(site, states=states, records=records))

    def _sender(self, client_id: int) -> Sender:
        return Sender(client_id, self.downloads.plan(client_id, self.plan).round_idx)

    def __call__(self, results: Iterable[LocalResult]) -> None:
        """Keep each client's new state, add its upload to the reduction, and report.

        Changes of a stack that are only summed are added at once. The numbers are those of one
        client after another, to the last bit. On a GPU changes may also be clipped, or combined
        by a robust rule; they stay there, and their reports wait.
        """
        if isinstance(results, TrainedStack) and self._adds_changes:
            weights, reduction = [*leaves(results.weights)], self.reduction
            if not weights[0].is_cpu and isinstance(reduction, MeanReduction | RowReduction):
                self._add_there(results, reduction)
                return
            types = {leaf.dtype for leaf in weights}
            short = types in ({torch.float32}, {torch.float64})  # summed in their own type
            if short and self.channel.is_direct and isinstance(reduction, MeanReduction):
                if len(results.bare) == 1 and num_bytes(results.weights) > LARGE_BYTES:
                    self._report(add_large(results, reduction, self._client))
                else:
                    self._add_rows(results, reduction)
                return
        for result in results:
            self._deliver(result)

    def _deliver(self, result: LocalResult) -> None:
        upload, state = self._client.finish(result)
        client_id = result.client_id
        sender = self._sender(client_id)
        if not self._client.is_finite(result, upload, state):  # it keeps its old state
            self._report(self._server(sender, self._client.diverged(result, upload)))
        elif self.channel.colludes(client_id):
            self.colluding.append((result, upload, state))
        elif self.channel.attacks(client_id):
            attacked = self.channel.attacked(upload, sender, self.site.algorithm.counted)
            self._attack(result, attacked, state)
        else:
            self._send(result, self._client.protect(result, upload, sender), state)

    def _add_rows(self, trained: TrainedStack, reduction: MeanReduction) -> None:
        together, like = change_rows(trained)
        rows, finite = together.unbind(), finite_rows(together)
        results = trained.with_sums()
        sent = [self._client.plain(result, like) for result in results]
        places = [i for i, r in enumerate(results) if finite[i] and isfinite(r.loss_sum)]
        clients = [results[i].client_id for i in places]
        weights = [sent[i].weight for i in places]
        reduction.add_rows(clients, [rows[i] for i in places], like, weights)
        arrived, size = set(places), num_bytes(like)
        for place, result in enumerate(results):
            report = report_of(result.client_id, sent[place], size)
            self._report(report if place in arrived else report.refused(DIVERGED))

    def _add_there(self, trained: TrainedStack, reduction: MeanReduction | RowReduction) -> None:
        """Add the uploads of a stack where it trained, without waiting for the device."""
        counted = self.site.algorithm.counted
        uploads, facts = device_uploads(trained, counted, self.channel.clips)
        for place, result in enumerate(trained.bare):
            upload = tree_map(itemgetter(place), uploads)
            weight = self._client.plain(result, upload).weight
            reduction.add(result.client_id, upload, weight)
        size = num_bytes(uploads) // len(trained.bare)
        self.waiting.append(Waiting(trained.bare, size, facts, perf_counter()))
        if perf_counter() - self.waiting[0].since > WAIT_SECONDS:
            self._report_waiting()

    def _report_waiting(self) -> None:
        """Report the uploads that were added on a GPU, and take those back that diverged."""
        for result, size, arrived, is_clipped in known(self.waiting):
            report = report_of(result.client_id, self._client.plain(result, {}), size)
            if not arrived:
                assert isinstance(self.reduction, MeanReduction | RowReduction)
                self.reduction.withdraw(result.client_id)
                report = report.refused(DIVERGED)
            elif is_clipped:
                report = report._replace(reason=CLIPPED)
            self._report(report)
        self.waiting.clear()

    def close(self, world: World) -> list[ClientReport]:
        """Deliver the uploads of attackers who collude, after all others; collective.

        Returns:
            The reports of all clients delivered.
        """
        self._report_waiting()
        if self.channel.attack.collude is not None:
            self._collude(world, self.channel.attack.collude)
        return [r._replace(seconds=self.seconds.get(r.client_id, 0.0)) for r in self.reports]

    def _collude(self, world: World, collude: Callable[..., Tensor]) -> None:
        counted = self.site.algorithm.counted
        uploads = {r.client_id: learned(upload, counted) for r, upload, _ in self.colluding}
        changes = {client_id: to_vectors(change, ())[0] for client_id, change in uploads.items()}
        everybody = {k: vector for part in gather(world, changes) for k, vector in part.items()}
        if not everybody:
            return
        attackers = sorted(everybody)
        rows = torch.stack([everybody[client_id] for client_id in attackers])
        rng = generator(self.channel.seed, "collusion", self.plan.round_idx)
        poisoned = dict(
            zip(attackers, collude(rows, self.downloads.num_clients, rng), strict=True)
        )
        for result, upload, state in self.colluding:
            vector, honest = poisoned[result.client_id], uploads[result.client_id]
            change = from_vectors(vector, vector[:0], honest, ())
            change = tree_map(lambda x, like: x.to(like.dtype), change, honest)
            self._attack(result, merge(upload, change), state)

    def _attack(self, result: LocalResult, upload: Tree, state: Tree) -> None:
        """Send an attacker's upload, which skips the clip and the noise of privacy."""
        sent = self._client.plain(result, upload)
        # An attack may have overflowed: what is not finite is rejected on arrival.
        self._send(result, sent, state, encodes=all_finite(upload), is_suspect=True)

    def _send(
        self,
        result: LocalResult,
        sent: Sent,
        state: Tree,
        *,
        encodes: bool = True,
        is_suspect: bool = False,
    ) -> None:
        """Send an upload, store the client's state, and aggregate what arrives."""
        sender = self._sender(result.client_id)
        residual = self.site.residual(sender.client_id)
        if encodes:
            sent, residual = self._client.encode(sent, sender, residual)
        self.site.keep_state(sender.client_id, state, residual)
        decoded = self._server.decode(sender, sent)
        arrived = self.channel.in_transit(decoded, sender, self.site.algorithm.counted)
        if arrived is None:
            self._report(report_of(sender.client_id, sent, 0)._replace(status="lost"))
            return
        size = sent.num_bytes
        if arrived is not decoded:
            size += num_bytes(arrived) - num_bytes(decoded)
        # Clips, noise and encodings of honest clients keep leaves, and numbers finite.
        is_suspect = is_suspect or arrived is not decoded
        expected = sent.upload if is_suspect else None
        report = report_of(sender.client_id, sent, size)
        report = self._server.accept(report, arrived, sent, expected=expected)
        self._arrive(report, sent.weight, result.context.server)

    def received(
        self, client_id: int, answer: Sent | ClientReport, expected: Tree, download: Tree
    ) -> None:
        """Deliver what a real client sent, or the report that nothing came in time.

        `expected` is an upload like those that the server wants, of meta tensors; `download` is
        what the client got.
        """
        if isinstance(answer, ClientReport):
            self._report(answer)
            return
        num = len(self.site.data.train_clients.indices_of(client_id))
        report = self._server.from_outside(self._sender(client_id), answer, expected, num)
        self._arrive(report, answer.weight, download)

    def _arrive(self, report: ClientReport, weight: float, received: Tree) -> None:
        """Aggregate an upload that was accepted, and report."""
        if report.upload is not None:
            order = self.downloads.orders.get(report.client_id, Order())
            upload = self._server.up_to_date(report.upload, order, received, self.downloads.exact)
            place = self.site.algorithm.kit.place
            upload = upload if place is None else {**upload, **place(upload, received)}
            self.reduction.add(report.client_id, upload, weight)
        self._report(report._replace(upload=None))

    def _report(self, report: ClientReport) -> None:
        self.reports.append(report)
        self.on_client(report)


class Trained(NamedTuple):
    """The result of a cohort's call.

    Attributes:
        uploads: as the server step gets them; None if too few arrived.
        reports: one per client, in the order of the cohort.
        shortage: the reason if too few uploads arrived; otherwise empty.
        down_bytes: that each client downloaded.
    """

    uploads: Uploads | None
    reports: list[ClientReport]
    shortage: str
    down_bytes: int


def exchange(
    world: World, reports: list[ClientReport], reduction: Reduction, cohort: Sequence[int]
) -> tuple[list[ClientReport], Specs | None]:
    """All ranks' reports in the order of the cohort, and what uploads look like; collective.

    Both are sent together: each exchange takes as long as a message to the furthest rank.
    """
    together = world.size > 1
    rows = [*map(tuple, reports)]  # pickled several times as fast as named tuples
    ranks = gather(world, (rows, reduction.specs() if together else []), "reports")
    place = {client_id: i for i, client_id in enumerate(cohort)}
    ordered = [ClientReport(*row) for part, _ in ranks for row in part]
    ordered.sort(key=lambda report: place[report.client_id])
    if not together:
        return ordered, None
    return ordered, [common_spec(specs) for specs in zip(*(s for _, s in ranks), strict=True)]


def after_reduction(report: ClientReport, reduced: Reduced) -> ClientReport:
    """A client's report with what the reduction decided or cost."""
    if report.client_id in reduced.left_out:
        return report.refused(NOT_SELECTED)
    if report.accepted and report.client_id in reduced.unhelpful:
        report = report._replace(reason=reduced.unhelpful[report.client_id])
    if reduced.traffic is not None and report.accepted:
        return report._replace(up_bytes=reduced.traffic.up)
    return report
