"""Simulates the way of uploads: a client's side, attackers and faults, the server's side.

Every engine calls a `Delivery` after each client's local training. A deployment has `ClientSide`
and `ServerSide` on different machines, and neither of what is between them here. Attackers who
collude wait for each other.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from math import isfinite
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.algorithms.contract.downloads import Downloads, Order
from flfast.channel.channel import Channel
from flfast.channel.client_side import ClientSide
from flfast.channel.reduced import Reduction
from flfast.channel.reduction import MeanReduction
from flfast.channel.sent import LocalResult, Sender, Sent
from flfast.channel.server_side import DIVERGED, LOST, Arrival, ServerSide
from flfast.distributed.world import World, gather
from flfast.engines.local_training import TrainedStack
from flfast.engines.reports import ClientReport
from flfast.engines.site import Site
from flfast.state.plan import RoundPlan
from flfast.state.randomness import generator
from flfast.state.tree import Tree, all_finite, joined, leaves, merge, num_bytes, part_of, tree_map
from flfast.state.vector import from_vectors, learned, to_vectors


class _Finished(NamedTuple):
    """A client's upload and its new state."""

    result: LocalResult
    upload: Tree
    state: Tree
    sender: Sender


class Delivery:
    """Delivers the results of one call, and calls `on_client` with each report.

    Attributes:
        reduction: collects the uploads.
        reports: one per client delivered, in order.
        seconds: see `ClientReport`, by client, as far as measured.
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
        self._client = ClientSide(site.algorithm, channel)
        self._server = ServerSide(site.algorithm, channel)
        self._counted = site.algorithm.counted
        self.reduction, self._downloads = reduction, downloads
        self._plan, self._on_client = plan, on_client
        orders = downloads.orders.values()
        self._adds_rows = (
            channel.is_direct
            and site.algorithm.uploads_changes
            and not site.keeps_states
            and not any(order.mixes or order.scale != 1 for order in orders)
        )
        self._colluding: list[_Finished] = []
        self.reports: list[ClientReport] = []
        self.seconds: dict[int, float] = {}

    def for_site(self, site: Site) -> "Delivery":
        """This delivery, for clients with the model of another site; reports are shared."""
        part, own = copy(self), self._site
        part.__dict__ |= {
            "_site": replace(site, states=own.states, records=own.records),
            "_client": ClientSide(site.algorithm, self._channel),
            "_server": ServerSide(site.algorithm, self._channel),
        }
        return part

    def __call__(self, result: LocalResult) -> None:
        """Keep the client's new state, add its upload to the reduction, and report."""
        upload, state = self._client.finish(result)
        client_id = result.client_id
        sender = Sender(client_id, self._downloads.plan(client_id, self._plan).round_idx)
        if not self._client.is_finite(result, upload, state):  # it keeps its old state
            sent = self._client.diverged(result, upload)
            self._report(client_id, sent, self._server(sender, sent))
            return
        finished = _Finished(result, upload, state, sender)
        if self._channel.colludes(client_id):
            self._colluding.append(finished)
        elif self._channel.attacks(client_id):
            self._attack(finished, self._channel.attacked(upload, sender, self._counted))
        else:
            self._send(finished, self._client.protect(result, upload, sender))

    def stack(self, trained: TrainedStack) -> None:
        """Deliver the results of a stack: at once where uploads are changes that arrive as sent.

        The numbers are those of one client after another, to the last bit.
        """
        reduction = self.reduction
        types = {leaf.dtype for leaf in leaves(trained.weights)}
        summed = types in ({torch.float32}, {torch.float64})  # in their own type
        if not (self._adds_rows and summed and isinstance(reduction, MeanReduction)):
            for result in trained.results():
                self(result)
            return
        together, like = _changes(trained)
        rows, finite = together.unbind(), _finite_rows(together)
        sent = [self._client.plain(result, like) for result in trained.bare]
        places = [i for i, one in enumerate(trained.bare) if finite[i] and isfinite(one.loss_sum)]
        clients = [trained.bare[i].client_id for i in places]
        weights = [sent[i].weight for i in places]
        reduction.add_rows(clients, [rows[i] for i in places], like, weights)
        arrived, size = set(places), num_bytes(like)
        here = Arrival("trained", "", size, None)
        left_out = Arrival("rejected", DIVERGED, size, None)
        for i, (result, own) in enumerate(zip(trained.bare, sent, strict=True)):
            self._report(result.client_id, own, here if i in arrived else left_out)

    def close(self, world: World) -> None:
        """Deliver the uploads of attackers who collude, after all others; collective."""
        collude = self._channel.attack.collude
        if collude is None:
            return
        own = {one.sender.client_id: learned(one.upload, self._counted) for one in self._colluding}
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
            vector, honest = poisoned[one.sender.client_id], own[one.sender.client_id]
            change = from_vectors(vector, vector[:0], honest, ())
            change = tree_map(lambda x, like: x.to(like.dtype), change, honest)
            self._attack(one, merge(one.upload, change))

    def _attack(self, finished: _Finished, upload: Tree) -> None:
        """Send an attacker's upload, which skips the clip and the noise of privacy."""
        sent = self._client.plain(finished.result, upload)
        # An attack may have overflowed: what is not finite is rejected on arrival.
        self._send(finished, sent, encodes=all_finite(upload), is_suspect=True)

    def _send(
        self, finished: _Finished, sent: Sent, *, encodes: bool = True, is_suspect: bool = False
    ) -> None:
        """Send an upload, store the client's state, and aggregate what arrives."""
        result, _, state, sender = finished
        residual = self._site.residual(sender.client_id)
        if encodes:
            sent, residual = self._client.encode(sent, sender, residual)
        self._site.keep_state(sender.client_id, state, residual)
        decoded = self._server.decode(sender, sent)
        arrived = self._channel.in_transit(decoded, sender, self._counted)
        if arrived is None:
            self._report(sender.client_id, sent, LOST)
            return
        size = sent.num_bytes
        if arrived is not decoded:
            size += num_bytes(arrived) - num_bytes(decoded)
        # Clips, noise and encodings of honest clients keep leaves, and numbers finite.
        is_suspect = is_suspect or arrived is not decoded
        expected = sent.upload if is_suspect else None
        arrival = self._server.accept(arrived, sent, size, expected=expected)
        self._arrive(sender, sent, arrival, result.context.server)

    def received(
        self, client_id: int, answer: Sent | Arrival, expected: Tree, download: Tree
    ) -> None:
        """Deliver what a real client sent, or that nothing came in time.

        `expected` is an upload like those that the server wants, of meta tensors; `download` is
        what the client got.
        """
        sender = Sender(client_id, self._downloads.plan(client_id, self._plan).round_idx)
        if isinstance(answer, Arrival):
            self._report(client_id, Sent({}, b"", 0.0, *(0, 0, 0), 0.0), answer)
            return
        num = len(self._site.data.train_clients.indices_of(client_id))
        arrival = self._server.from_outside(sender, answer, expected, num)
        self._arrive(sender, answer, arrival, download)

    def _arrive(self, sender: Sender, sent: Sent, arrival: Arrival, received: Tree) -> None:
        """Aggregate an upload that has arrived, and report."""
        if arrival.upload is not None:
            order = self._downloads.orders.get(sender.client_id, Order())
            upload = self._server.up_to_date(
                arrival.upload, order, received, self._downloads.exact
            )
            place = self._site.algorithm.place
            upload = upload if place is None else {**upload, **place(upload, received)}
            self.reduction.add(sender.client_id, upload, sent.weight)
        self._report(sender.client_id, sent, arrival)

    def _report(self, client_id: int, sent: Sent, arrival: Arrival) -> None:
        report = ClientReport(
            client_id=client_id,
            num_examples=sent.num_examples,
            num_seen=sent.num_seen,
            num_steps=sent.num_steps,
            loss=sent.loss_sum / max(sent.num_seen, 1),
            up_bytes=arrival.num_bytes,
            status=arrival.status,
            reason=arrival.reason,
            logged=sent.logged,
        )
        self.reports.append(report)
        self._on_client(report)


def _changes(trained: TrainedStack) -> tuple[Tensor, Tree]:
    """`Context.change` of every client's weights: rows [S, D], and a tree like one of them."""
    starts = joined(*(result.context.start for result in trained.bare))
    starts = part_of(starts, trained.weights)
    sizes = [leaf[0].numel() for leaf in leaves(trained.weights)]
    rows = torch.empty(len(trained.bare), sum(sizes), dtype=next(leaves(trained.weights)).dtype)
    columns = iter(rows.split(sizes, dim=1))
    with torch.no_grad():
        tree_map(
            lambda end, start: torch.sub(end, start, out=next(columns).view(end.shape)),
            trained.weights,
            starts,
        )
    return rows, tree_map(itemgetter(0), trained.weights)


def _finite_rows(rows: Tensor) -> list[bool]:
    """Whether no number of a row [D] is NaN or infinity, of S rows."""
    # As in `all_finite`: a sum needs no mask, but may overflow.
    sums = rows.sum(1).tolist()
    return [
        isfinite(total) or bool(row.isfinite().all())
        for total, row in zip(sums, rows, strict=True)
    ]
