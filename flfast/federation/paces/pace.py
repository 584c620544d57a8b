"""The interface of paces: what happens in virtual time up to the server's next step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flfast.algorithms.contract.downloads import Order
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.sampling import Sampling
from flfast.federation.timing import Timing
from flfast.state.capabilities import Capabilities
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree


class Event(NamedTuple):
    """Something that happens at a virtual time.

    Attributes:
        seconds: since the run began.
        kind: `dispatch`, `arrival`, `failure`, `late` or `step`.
        client: that it happens to; -1 for a step of the server.
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
    """What happens up to a step of the server.

    Attributes:
        cohort: clients whose uploads the server aggregates, and those that fail or are late.
        orders: by client, for those that do something else than the others.
        columns: of `metrics.csv`.
        events: in order; empty if nobody's time is measured.
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
        """What happens up to the server's next step.

        Args:
            plan: of the round that the step ends.
            broadcast: gives what clients download now.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: plain values, and tensors."""

    def load_state_dict(self, saved: dict[str, Any], plan: Callable[[int], RoundPlan]) -> None:
        """Go on from there.

        Args:
            saved: as `state_dict` returned it.
            plan: of one of the rounds before.
        """


class Setting(NamedTuple):
    """What paces work with.

    Attributes:
        sampling: draws clients.
        timing: how long they take.
    """

    sampling: Sampling
    timing: Timing
