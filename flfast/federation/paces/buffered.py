"""FedBuff: the server steps whenever a buffer of uploads is full; nobody waits for anybody.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous
Aggregation. AISTATS 2022, Algorithm 1. https://arxiv.org/abs/2106.06639

    w[t+1] = server step from w[t] on the uploads w[t] + s(t_k) (w_k - w[v_k]),   k in the buffer

v_k is the version that client k downloaded, t_k = t - v_k its staleness, s a discount. With
FedAvg, that is w[t] plus the mean of the discounted changes. The sampler's cohort is the clients
that work at the same time, the paper's concurrency. Whenever one is done, another one is drawn
that neither works nor has an upload in the buffer. The paper's clients count equally, which is
`algorithm.weighting=uniform`.
"""

import heapq
import logging
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np

from flfast.algorithms.contract.downloads import Order, Version
from flfast.federation.paces.discounts import Discount, DiscountName, discount_of
from flfast.federation.paces.pace import Event, Setting, Turn
from flfast.federation.paces.pool import Pool
from flfast.federation.samplers.cohort import Cohort
from flfast.state.capabilities import Capabilities, breaking, needing
from flfast.state.options import Count, NonNegative
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree

log = logging.getLogger(__name__)

UNROUNDED = needing("messages", "changes", "single clients") | breaking(
    "the server does not wait for all clients", "rounds", "whole cohorts"
)
"""Of a pace without rounds."""
ONE_BY_ONE = (
    UNROUNDED | needing("changes that mix") | breaking("a step has one upload", "several uploads")
)
"""Of a step for every upload."""


class Flight(NamedTuple):
    """A client at work; ordered by the time at which it ends.

    Attributes:
        end: virtual seconds, when its upload arrives or it fails.
        number: number of the dispatch, in order.
        client: number of the client.
        version: round of the model that it downloaded.
        work_fraction: fraction of the local epochs or steps that the client does, in (0, 1].
        fails: whether the client never answers.
    """

    end: float
    number: int
    client: int
    version: int
    work_fraction: float
    fails: bool


class Buffered:
    """Asynchronous training with a buffer; see `Pace`.

    Args:
        buffer: uploads that the server waits for, >= 1.
        discount: (staleness >= 0) -> factor of an upload's change, in (0, 1].
        scale: further factor of all changes.
        mixes: whether uploads are mixed with the server's model; see `Order`.
        setting: draws clients and tells their virtual times.
    """

    def __init__(
        self, buffer: int, discount: Discount, *, scale: float, mixes: bool, setting: Setting
    ) -> None:
        self._buffer, self._discount, self._scale, self._mixes = buffer, discount, scale, mixes
        self._sampling, self._timing = setting[:2]
        self._clock, self._pool = 0.0, Pool(self._sampling, self._timing)
        self._num_dispatched = self._concurrency = 0
        self._flights: list[Flight] = []
        self._versions: dict[int, Version] = {}

    @property
    def most_uploads(self) -> tuple[str, int] | None:
        """See `Pace`."""
        return ("pace.buffer" if not self._mixes else "pace", self._buffer)

    @property
    def capabilities(self) -> Capabilities:
        """See `Pace`."""
        return ONE_BY_ONE if self._mixes else UNROUNDED

    def check(self) -> None:
        """Refuse a buffer that is never full; see `Pace`."""
        first = self._sampling.cohort(1)
        self._concurrency = len(first.clients) + len(first.dropped)
        if self._buffer > self._concurrency:
            raise ValueError(
                f"pace.buffer={self._buffer}: only {self._concurrency} clients work at the same "
                f"time; allowed: 1 to {self._concurrency}, or a larger sampler.count"
            )
        if self._buffer == len(self._sampling.candidates):
            log.warning(
                "pace.buffer=%d is the whole population: the server waits for everybody, as in "
                "rounds",
                self._buffer,
            )

    def turn(self, plan: RoundPlan, broadcast: Callable[[], Tree]) -> Turn:
        """Advance until the buffer is full; see `Pace`."""
        self._versions[plan.round_idx] = Version(broadcast(), plan)
        arrived: list[Flight] = []
        failed: list[Flight] = []
        events: list[Event] = []
        while True:
            while self._flights and len(arrived) < self._buffer:
                if self._flights[0].end > self._clock:
                    break
                flight = heapq.heappop(self._flights)
                (failed if flight.fails else arrived).append(flight)
                if flight.fails:
                    self._pool.release([flight.client])
                staleness = 0 if flight.fails else plan.round_idx - flight.version
                kind = "failure" if flight.fails else "arrival"
                events.append(Event(flight.end, kind, flight.client, flight.version, staleness))
            if len(arrived) == self._buffer:
                break
            events += self._dispatch(plan)
            ends = self._flights[0].end if self._flights else np.inf
            self._clock = min(ends, self._pool.wakes)
        events.append(Event(self._clock, "step", -1, plan.round_idx))
        self._pool.release([flight.client for flight in arrived])
        turn = self._turn(plan, arrived, failed, events)
        needed = {flight.version for flight in self._flights}
        self._versions = {number: self._versions[number] for number in sorted(needed)}
        return turn

    def _turn(
        self, plan: RoundPlan, arrived: list[Flight], failed: list[Flight], events: list[Event]
    ) -> Turn:
        arrived = sorted(arrived, key=lambda flight: (flight.version, flight.client))
        staleness = [plan.round_idx - flight.version for flight in arrived]
        orders: dict[int, Order] = {}
        for flight, late in zip(arrived, staleness, strict=True):
            version, scale = self._versions[flight.version], self._scale * self._discount(late)
            orders[flight.client] = Order(version, flight.work_fraction, scale, self._mixes)
        gone = sorted({flight.client for flight in failed} - orders.keys())
        columns = {
            "clock/seconds": self._clock,
            "clock/staleness": float(np.mean(staleness)),
            "clock/staleness_max": max(staleness),
            "clock/in_flight": len(self._flights),
        }
        clients = np.array([flight.client for flight in arrived], dtype=np.int64)
        return Turn(Cohort(clients, np.array(gone, dtype=np.int64)), orders, columns, events)

    def _dispatch(self, plan: RoundPlan) -> list[Event]:
        """Let clients begin until as many work as may, or nobody else is available."""
        drawn = self._pool.draw(self._concurrency - len(self._flights), self._clock)
        clients = np.concatenate([drawn.clients, drawn.dropped])
        number = self._pool.num_draws
        trips = self._timing.trips(clients, plan, clock=self._clock, number=number)
        silent = np.arange(len(clients)) >= len(drawn.clients)
        rows = zip(
            clients.tolist(),
            (self._clock + trips.seconds).tolist(),
            trips.work_fractions.tolist(),
            (trips.fails | silent).tolist(),
            strict=True,
        )
        version, events = plan.round_idx, []
        for client, end, work_fraction, fails in rows:
            self._num_dispatched += 1
            flight = Flight(end, self._num_dispatched, client, version, work_fraction, fails)
            heapq.heappush(self._flights, flight)
            events.append(Event(self._clock, "dispatch", client, version))
        return events

    def state_dict(self) -> dict[str, Any]:
        """The clock, the busy clients, and the versions that they train from."""
        return {
            "clock": self._clock,
            "draws": self._pool.num_draws,
            "dispatched": self._num_dispatched,
            "flights": [list(flight) for flight in sorted(self._flights)],
            "versions": {number: part.broadcast for number, part in self._versions.items()},
        }

    def load_state_dict(self, saved: dict[str, Any], plan: Callable[[int], RoundPlan]) -> None:
        """See `Pace`."""
        self._clock = float(saved["clock"])
        self._pool.num_draws, self._num_dispatched = saved["draws"], saved["dispatched"]
        self._flights = [Flight(*row) for row in saved["flights"]]
        self._pool.occupy([flight.client for flight in self._flights])
        self._versions = {
            number: Version(broadcast, plan(number))
            for number, broadcast in saved["versions"].items()
        }


def buffered(
    *,
    buffer: Count,
    discount: DiscountName,
    strength: NonNegative | None,
    patience: NonNegative | None,
    setting: Setting,
) -> Annotated[Buffered, UNROUNDED]:
    """FedBuff."""
    function = discount_of(discount, strength, patience)
    return Buffered(buffer, function, scale=1.0, mixes=False, setting=setting)
