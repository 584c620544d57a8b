"""Synchronous rounds: the server waits for its cohort, or for a part of it.

Bonawitz et al.: Towards Federated Learning at Scale: System Design. MLSys 2019, section 2.2: more
clients are chosen than needed, the first ones count, and a deadline ends the round.
https://arxiv.org/abs/1902.01046
"""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np

from flfast.algorithms.contract.downloads import Order
from flfast.federation.paces.pace import Event, Setting, Turn
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.sampling import NOBODY
from flfast.federation.timing import Trips
from flfast.federation.topologies.node_clocks import NodeClocks
from flfast.state.capabilities import NEUTRAL, Capabilities, breaking
from flfast.state.options import Count, Positive
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree

FASTEST = breaking("a client in time puts another one out", "whole cohorts")
"""Of rounds that do not wait for all."""
KeepFirst = Annotated[Count | None, FASTEST]


class Sync:
    """Synchronous rounds; see `Pace`, and `sync` for the options.

    A client that is not in time is late: its work is discarded, and its state stays as it was.
    The nodes of a topology have a clock each, and wait for their own clients.
    """

    def __init__(self, deadline: float | None, keep_first: int | None, setting: Setting) -> None:
        self._deadline, self._keep_first, self._setting = deadline, keep_first, setting
        self._clocks = NodeClocks(setting.topology, setting.model_bytes, setting.timing)

    @property
    def most_uploads(self) -> tuple[str, int] | None:
        """See `Pace`."""
        return None if self._keep_first is None else ("pace.keep_first", self._keep_first)

    @property
    def capabilities(self) -> Capabilities:
        """See `Pace`."""
        return NEUTRAL if self._keep_first is None else FASTEST

    def check(self) -> None:
        """Not every sampler can draw from a part of the clients.

        Raises:
            ValueError: if cohorts are smaller than `keep_first`, or are fixed by the round while
                clients are not always available, or with a topology.
        """
        sampling, first = self._setting.sampling, self._keep_first
        if first is not None and self._setting.topology is not None:
            raise ValueError(
                f"pace.keep_first={first} with topology={self._setting.topology.name}: counts the "
                f"uploads of one server; allowed: pace.keep_first=null, or topology=star"
            )
        if first is not None and sampling.draws_any_number:
            drawn = sampling.cohort(1)
            size = len(drawn.clients) + len(drawn.dropped)
            if first > size:
                raise ValueError(
                    f"pace.keep_first={first}: cohorts have {size} clients; allowed: 1 to {size}, "
                    f"or a larger sampler.count"
                )
        if sampling.depends_on_round and not self._always_available:
            raise ValueError(
                "sampler: its cohorts are fixed by the round, but clients are not always "
                "available; allowed: devices that are, or another sampler, such as uniform"
            )

    @cached_property
    def _always_available(self) -> bool:
        """Whether everybody is, at all times; found once, since it costs O(population)."""
        if self._setting.timing.is_ideal:
            return True
        everybody = self._setting.sampling.candidates
        return bool((self._setting.timing.devices(everybody).available >= 1).all())

    def turn(self, plan: RoundPlan, broadcast: Callable[[], Tree]) -> Turn:
        """One round; see `Pace`."""
        timing, sampling = self._setting.timing, self._setting.sampling
        waits_for_all = self._deadline is None and self._keep_first is None
        if timing.is_ideal and timing.is_full and waits_for_all and self._clocks.is_ideal:
            return Turn(sampling.cohort(plan.round_idx))
        drawn = sampling.cohort(plan.round_idx, without=self._wait_for_clients())
        nodes = self._clocks.nodes_of(drawn.clients)
        starts = self._clocks.now[nodes]
        trips = timing.trips(drawn.clients, plan, clock=starts)
        in_time = self._in_time(drawn.clients, trips)
        durations, called = self._durations(drawn, trips, in_time)
        last = durations[nodes]
        present = np.bincount(nodes[in_time], minlength=len(durations)) > 0
        columns = self._clocks.advance(plan.round_idx, durations, called, present)
        end = float(self._clocks.now.max())
        failed = trips.fails & (trips.seconds <= last)
        cohort = Cohort(
            drawn.clients[in_time],
            np.concatenate([drawn.dropped, drawn.clients[failed]]),
            drawn.clients[~in_time & ~failed],
        )
        work_fractions = trips.work_fractions.tolist()
        orders = {
            client: Order(work_fraction=work_fraction)
            for client, work_fraction in zip(drawn.clients.tolist(), work_fractions, strict=True)
            if work_fraction < 1
        }
        events = list(
            _events(drawn.clients, trips, in_time, starts, starts + last, plan.round_idx)
        )
        events.append(Event(end, "step", -1, plan.round_idx))
        return Turn(cohort, orders, {"clock/seconds": end, **columns}, events)

    def _in_time(self, clients: np.ndarray, trips: Trips) -> np.ndarray:
        """Whether each client's upload arrives in time; bool [K]."""
        in_time = np.zeros(len(clients), dtype=bool)
        order = np.lexsort((clients, trips.seconds))
        limit = np.inf if self._deadline is None else self._deadline
        arrives = order[~trips.fails[order] & (trips.seconds[order] <= limit)]
        in_time[arrives[: self._keep_first]] = True
        return in_time

    def _durations(
        self, drawn: Cohort, trips: Trips, in_time: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Virtual seconds that the round lasts at each node [M], and whether it has clients."""
        nodes, silent = map(self._clocks.nodes_of, drawn[:2])
        num = len(self._clocks.now)
        enough = self._keep_first is not None and in_time.sum() == self._keep_first
        missing = np.bincount(silent, minlength=num) + np.bincount(nodes[~in_time], minlength=num)
        first, everybody = np.zeros(num), np.zeros(num)
        np.maximum.at(first, nodes[in_time], trips.seconds[in_time])
        np.maximum.at(everybody, nodes, trips.seconds)
        # Nobody tells the server that a client will not answer: it waits until the deadline.
        longest = everybody if self._deadline is None else self._deadline
        called = (np.bincount(nodes, minlength=num) > 0) | (missing > 0)
        return np.where(enough | (missing == 0), first, longest), called

    def _wait_for_clients(self) -> np.ndarray:
        """Ids of clients that are not available; waits until somebody is."""
        if self._always_available:
            return NOBODY
        everybody = self._setting.sampling.candidates
        devices, nodes = self._setting.timing.devices(everybody), self._clocks.nodes_of(everybody)
        waits = devices.wait(self._clocks.now[nodes])
        if waits.min() > 0:
            self._clocks.now = self._clocks.now + waits.min()
            waits = devices.wait(self._clocks.now[nodes])
        return everybody[waits > 0]

    def state_dict(self) -> dict[str, Any]:
        """The clock of each node."""
        return {"clock": self._clocks.now.tolist()}

    def load_state_dict(self, saved: dict[str, Any], plan: Callable[[int], RoundPlan]) -> None:
        """Restore the clocks."""
        self._clocks.now = np.atleast_1d(np.array(saved["clock"], dtype=np.float64))


def _events(
    clients: np.ndarray,
    trips: Trips,
    in_time: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    round_idx: int,
) -> Iterator[Event]:
    """The events of a round's clients: who begins, then the others in the order of time."""
    for client, start in zip(clients.tolist(), starts.tolist(), strict=True):
        yield Event(start, "dispatch", client, round_idx)
    later: list[Event] = []
    times = (starts + trips.seconds).tolist(), ends.tolist()
    rows = zip(clients.tolist(), *times, in_time, trips.fails, strict=True)
    for client, time, end, counts, failed in rows:
        if counts:
            later.append(Event(time, "arrival", client, round_idx))
        elif failed and time <= end:
            later.append(Event(time, "failure", client, round_idx))
        else:
            later.append(Event(end, "late", client, round_idx))
    yield from sorted(later, key=lambda event: event.seconds)


def sync(*, deadline: Positive | None, keep_first: KeepFirst, setting: Setting) -> Sync:
    """Synchronous rounds."""
    return Sync(deadline, keep_first, setting)


ROUNDS = partial(sync, deadline=None, keep_first=None)
"""Rounds in which the server waits for the whole cohort."""
