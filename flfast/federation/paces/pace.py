"""The interface of paces: what happens in virtual time up to the server's next step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flfast.algorithms.contract.downloads import Order
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.sampling import Sampling
from flfast.federation.timing import Timing
from flfast.federation.topologies.topology import Topology
from flfast.state.capabilities import Capabilities
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree


class Event(NamedTuple):
    """Something that happens at a virtual time.

    Attributes:
        seconds: virtual seconds since the run began.
        kind: `dispatch`, `arrival`, `failure`, `late` or `step`.
        client: client of the event; -1 for a step of the server.
        version: round of the model that the client downloads or has downloaded, from 1; of a
            step, the round that it ends.
        staleness: server steps between download and arrival; 0 for other events.
    """

    seconds: float
    kind: str
    client: int
    version: int
    staleness: int = 0


@dataclass(frozen=True)
class Turn:
    """A step of the server, and the events before it.

    Attributes:
        cohort: clients whose uploads the server aggregates, and those that fail or are late.
        orders: orders by client, for clients that differ from the others of the cohort.
        columns: values of further columns of `metrics.csv`, by name.
        events: events in order; empty if nobody's time is measured.
    """

    cohort: Cohort
    orders: Mapping[int, Order] = field(default_factory=dict)
    columns: Mapping[str, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


class Pace(Protocol):
    """Decides whose uploads each step of the server aggregates.

    The result is a function of seed and settings: it does not depend on ranks or on real time.
    """

    @property
    def most_uploads(self) -> tuple[str, int] | None:
        """(key, number): most uploads of a step, and the option that says so; None: all."""

    @property
    def capabilities(self) -> Capabilities:
        """What it needs and breaks."""

    def check(self) -> None:
        """Refuse numbers and devices that do not fit to the sampler.

        Raises:
            ValueError: with the reason.
        """

    def turn(self, plan: RoundPlan, broadcast: Callable[[], Tree]) -> Turn:
        """Advance the virtual time to the server's next step.

        Args:
            plan: the plan of the round that the step ends.
            broadcast: gives what clients download now.
        """

    def state_dict(self) -> dict[str, Any]:
        """State of the pace for a resumed run: plain values and tensors."""

    def load_state_dict(self, saved: dict[str, Any], plan: Callable[[int], RoundPlan]) -> None:
        """Restore the state that `state_dict` returned; `plan` gives plans of rounds before."""


class Setting(NamedTuple):
    """The parts of a run that every pace needs.

    Attributes:
        sampling: who is drawn.
        timing: how long clients take.
        topology: nodes between clients and their common model; None is one server.
        model_bytes: of a model that nodes exchange.
    """

    sampling: Sampling
    timing: Timing
    topology: Topology | None = None
    model_bytes: int = 0
