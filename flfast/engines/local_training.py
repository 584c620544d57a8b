"""The interface of engines: how one rank trains its clients of a cohort, and what all refuse."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flfast.algorithms.contract import Algorithm, LocalStage
from flfast.algorithms.contract.downloads import Download
from flfast.channel.sent import LocalResult
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree, joined, part_of
from flfast.state.weights import model_weights
from flfast.tasks.task_type import TaskType

Deliver = Callable[[Iterable[LocalResult]], None]
"""Takes results as soon as they are there: a `Delivery` of `engines/delivery.py`."""


@dataclass(frozen=True)
class TrainedStack:
    """What the clients of a stack have trained to; valid until the next stack trains.

    It iterates over the clients' whole results, in copies on the CPU.

    Attributes:
        bare: each client's result, without weights, optimizer state and sums.
        starts: weights that each client trained from, on the device that trained.
        final: the clients' state there, each leaf [S, ...]: `params`, `buffers`, and the sums
            `loss` and `logged`.
        results: gives the whole results one after another.
    """

    bare: list[LocalResult]
    starts: list[Tree]
    final: Tree
    results: Callable[[], Iterator[LocalResult]]

    @property
    def weights(self) -> Tree:
        """Weights of all clients, on the device that trained, each leaf [S, ...]."""
        return model_weights(self.final)

    @property
    def start(self) -> Tree:
        """What they trained from, there; leaves that all clients share have no first axis."""
        return part_of(joined(*self.starts), self.weights)

    def with_sums(self) -> list[LocalResult]:
        """The bare results with their sums, of clients that trained on the CPU."""
        logged = {name: sums.tolist() for name, sums in self.final["logged"].items()}
        return with_sums(self.bare, self.final["loss"].tolist(), logged)

    def __iter__(self) -> Iterator[LocalResult]:
        return self.results()


def with_sums(
    bare: Sequence[LocalResult], loss: Sequence[float], logged: Mapping[str, Sequence[float]]
) -> list[LocalResult]:
    """Bare results with the sums of each client's losses, and of what a module logged."""
    return [
        result._replace(
            loss_sum=loss[place],
            logged={name: sums[place] / max(result.num_seen, 1) for name, sums in logged.items()},
        )
        for place, result in enumerate(bare)
    ]


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
