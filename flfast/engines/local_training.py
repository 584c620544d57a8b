"""The interface of engines: how one rank trains its clients of a cohort."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from flfast.algorithms.contract.client import Context, LocalStage
from flfast.algorithms.contract.downloads import Download
from flfast.channel.sent import LocalResult
from flfast.datamodules.client_data import ClientDataModule
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree


class ClientStart(NamedTuple):
    """The start of a client's local training.

    Attributes:
        context: download, client state, initial weights and learning rate.
        optimizer_state: by parameter name; empty for a new optimizer.
        data: the client's examples, in the plan's batches.
        plan: the client's own.
    """

    context: Context
    optimizer_state: Tree
    data: ClientDataModule
    plan: RoundPlan

    def stage_plan(self, stage: LocalStage) -> RoundPlan:
        """The plan of a stage: with the stage's epochs, and the client's share of all steps."""
        return self.plan.for_stage(stage.epochs).with_work_fraction(self.data.epoch.num_steps)


Deliver = Callable[[LocalResult], None]


class LocalTraining(Protocol):
    """Trains clients. All implementations give the same weights up to rounding.

    Attributes:
        name: the value of the key `engine`.
    """

    name: str

    def choose(self, plan: RoundPlan) -> str:
        """Decide how clients train under a plan, and describe it in a few words.

        Raises:
            ValueError: if this engine cannot run the plan.
        """

    def train(
        self, clients: Sequence[int], download: Download, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """Train clients from what they download; deliver each result as soon as it is there."""
