"""The interface of engines: how one rank trains its clients of a cohort, and what all refuse."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from flfast.algorithms.contract import Algorithm, LocalStage
from flfast.algorithms.contract.downloads import Download
from flfast.channel.sent import LocalResult
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.tasks.task_type import TaskType

Deliver = Callable[[Iterable[LocalResult]], None]
"""Takes results as soon as they are there: a `Delivery` of `engines/delivery.py`."""


@dataclass(frozen=True)
class TrainedStack:
    """What the clients of a stack have trained to; valid until the next stack trains.

    It iterates over the clients' whole results, in copies.

    Attributes:
        bare: each client's result, without weights and optimizer state.
        weights: of all clients, on the CPU, each leaf [S, ...].
        results: gives the whole results one after another.
    """

    bare: list[LocalResult]
    weights: Tree
    results: Callable[[], Iterator[LocalResult]]

    def __iter__(self) -> Iterator[LocalResult]:
        return self.results()


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
        """Train clients from what they download; deliver results as soon as they are there."""


def check_allowed(algorithm: Algorithm, joint: Tree, plan: RoundPlan, task: TaskType) -> None:
    """Refuse a plan that splits batches or shards the model where it is not allowed.

    The leaves `joint` train beside the model. The algorithm or the task may need whole batches.

    Raises:
        ValueError: with the reason and an alternative.
    """
    splits = _splits_batches(plan)
    single = plan.batching.batch_size == 1
    why = (
        splits
        or "compares the examples of a batch, and batch_size=1 has one; use 2 or more, or -1"
    )
    if not task.separable and (splits or single):
        raise ValueError(f"task={task.name} {why}")
    if task.name == "module" and splits and not plan.batching.accumulate > 1:
        raise ValueError(f"a LightningModule {splits}")
    whole_model = algorithm.kit.fold is None and algorithm.stages == (LocalStage(),)
    if plan.strategy == "fsdp" and (joint["params"] or joint["buffers"] or not whole_model):
        splits = (
            "trains parts of a model, or two models, or changes the frozen base, which "
            "strategy=fsdp cannot; use strategy=ddp"
        )
    elif algorithm.splits_batches:
        return
    if splits is not None:
        raise ValueError(f"algorithm={algorithm.name} {splits}")


def _splits_batches(plan: RoundPlan) -> str | None:
    """How the plan splits the batch of a local step; None if it keeps it whole."""
    size, accumulate, micro_batch = plan.batching[:3]
    whole = "needs whole batches, which"
    if plan.strategy in {"dp", "fsdp"}:
        return f"{whole} strategy={plan.strategy} divides; use strategy=ddp"
    if plan.strategy == "ddp" and plan.shard == "batch":
        return f"{whole} strategy.shard=batch divides; use strategy.shard=clients"
    if micro_batch is not None:
        return f"{whole} micro_batch={micro_batch} cuts; use micro_batch=null"
    if accumulate > 1 and size > 0:
        cuts = f"trainer.accumulate_grad_batches={accumulate} cuts"
        return f"{whole} {cuts}; use batch_size={size * accumulate} instead"
    return None
