"""The contract of engines: how the clients of a cohort are trained on one rank."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from flfast.algorithms.algorithm import Context, Finished, LocalStage
from flfast.datamodules.federated import ClientDataModule
from flfast.plan import RoundPlan
from flfast.state.tree import Tree


class ClientStart(NamedTuple):
    """What a client's local training starts from.

    Attributes:
        context: what the client may read.
        optimizer_state: by parameter name; empty for a fresh optimizer.
        data: the client's examples, in the plan's batches.
    """

    context: Context
    optimizer_state: Tree
    data: ClientDataModule


class LocalResult(NamedTuple):
    """A client's local training, as an engine delivers it.

    Attributes:
        client_id: in [0, num_clients).
        context: what the client could read.
        done: what local training arrived at.
        num_seen: training examples processed, every pass counted.
        loss_sum: sum of the local objective over them.
    """

    client_id: int
    context: Context
    done: Finished
    num_seen: int
    loss_sum: float


Deliver = Callable[[LocalResult], None]


class LocalTraining(Protocol):
    """Trains clients; every implementation gives the same numbers.

    Attributes:
        name: as in `engine=`.
    """

    name: str

    def choose(self, plan: RoundPlan) -> str:
        """How clients are trained under a plan, in a few words.

        Raises:
            ValueError: if this engine cannot train them.
        """

    def train(
        self, clients: Sequence[int], broadcast: Tree, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """Train clients from a broadcast; each is delivered as soon as it is done."""


def stage_plan(plan: RoundPlan, stage: LocalStage) -> RoundPlan:
    """The plan with the stage's number of epochs, if both count epochs."""
    own = stage.epochs is not None and plan.local_epochs is not None
    return plan._replace(local_epochs=stage.epochs) if own else plan
