"""The engine contract: how a cohort is run and a model evaluated."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from flfast.distributed.world import World
from flfast.evaluation.metrics import GroupMetrics
from flfast.lit.batchnorm import Recalibrated
from flfast.plan import RoundPlan
from flfast.server.channel import NOT_SELECTED, Channel, Status
from flfast.state.store import ClientStates
from flfast.state.tree import Tree


class ClientReport(NamedTuple):
    """What is known of one client's round.

    Attributes:
        client_id: in [0, num_clients).
        num_examples: distinct training examples used.
        num_seen: training examples processed, every pass counted.
        num_steps: local steps taken.
        loss: mean local training loss over the examples seen.
        up_bytes: size of the upload, as it arrived.
        status: what became of the upload.
        reason: why, or what was done to it; empty for most.
    """

    client_id: int
    num_examples: int
    num_seen: int
    num_steps: int
    loss: float
    up_bytes: int
    status: Status = "trained"
    reason: str = ""

    @property
    def rejected(self) -> bool:
        """Whether the upload arrived and was left out of the mean."""
        return self.status == "rejected"

    @property
    def accepted(self) -> bool:
        """Whether the upload took part, also if the aggregation preferred others."""
        return self.status == "trained" or self.reason == NOT_SELECTED


class Trained(NamedTuple):
    """A cohort's round.

    Attributes:
        mean: of the uploads, as the aggregation has it; None if too few clients delivered one.
        reports: one per client of the cohort, in its order.
        shortage: what is missing where some did; otherwise empty.
    """

    mean: Tree | None
    reports: list[ClientReport]
    shortage: str = ""


class Engine(Protocol):
    """Runs cohorts; every engine gives the same numbers.

    Attributes:
        name: as in `engine=`.
        evaluation_sets: what `evaluate` will measure.
        channel: what uploads go through; by default nothing happens to them.
        states: what this rank's clients keep between rounds.
        world: the ranks of the run.
        decided: what `auto` stood for on this rank so far, as plain values by name; a run that
            goes on sets what it was before the first `choose`.
    """

    name: str
    evaluation_sets: set[str]
    channel: Channel
    states: ClientStates
    world: World
    decided: dict[str, Any]

    def choose(self, plan: RoundPlan) -> str:
        """How cohorts of a plan are run, in a few words.

        Raises:
            ValueError: if this engine cannot run them.
        """

    def train(
        self,
        server: Tree,
        cohort: Sequence[int],
        plan: RoundPlan,
        *,
        on_client: Callable[[ClientReport], None],
    ) -> Trained:
        """Local training of a cohort from the server's state, and the mean of its uploads."""

    def evaluate(self, server: Tree, plan: RoundPlan) -> dict[str, GroupMetrics]:
        """Metrics by evaluation set: `global`, `local`, `personal`, `val` where they exist."""

    def recalibrate(self, server: Tree, cohort: Sequence[int], plan: RoundPlan) -> Recalibrated:
        """BatchNorm statistics measured on the cohort's training data, and what that sent."""

    def close(self) -> None:
        """Say what the run's profiler found."""
