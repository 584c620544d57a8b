"""What all engines share: ranks, states, the mean of uploads, evaluation."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import lightning as L
import numpy as np
from torch import Tensor, nn

from flfast.algorithms.algorithm import Algorithm, Context, Finished, joint_leaves
from flfast.datamodules.batches import WHOLE, RankShare
from flfast.datamodules.federated import ClientDataModule, FederatedDataModule
from flfast.distributed.assignment import assign_clients
from flfast.distributed.client_state_placement import fetch_states, owner, return_states
from flfast.distributed.world import ALONE, World, gather
from flfast.engines.engine import ClientReport, Trained
from flfast.evaluation.metrics import GroupMetrics
from flfast.evaluation.passes import Evaluation, FineTune, for_evaluation
from flfast.lit.batchnorm import Recalibrated, recalibrate, recalibration_bytes
from flfast.lit.local_module import LocalModule
from flfast.lit.trainers import Trainers
from flfast.plan import RoundPlan
from flfast.randomness import generator, seed_torch
from flfast.server.channel import DIVERGED, NOT_SELECTED, Arrival, Channel
from flfast.server.reduction import Reduction, reduction_for
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, all_finite, num_bytes
from flfast.state.weights import read_buffers, read_weights, write_weights

EVERY_RANK = -1

FINE_TUNING = Algorithm(
    name="fine-tuning",
    stateful=True,
    client_state=lambda broadcast: broadcast,
    start=lambda broadcast, client: client,
)
"""Plain local training from a client's own weights, which are its state."""


def fine_tuning(module: LocalModule) -> LocalModule:
    """The same model and optimizer, with `FINE_TUNING`."""
    return LocalModule(
        module.model,
        FINE_TUNING,
        module.make_optimizer,
        freeze_batchnorm=module.freeze_batchnorm,
    )


class LocalResult(NamedTuple):
    """A client's local training, as an engine delivers it.

    Attributes:
        client_id: in [0, num_clients).
        context: what the client could read.
        done: what it arrived at.
        num_seen: training examples processed, every pass counted.
        loss_sum: of the local objective over them.
    """

    client_id: int
    context: Context
    done: Finished
    num_seen: int
    loss_sum: float


class CohortEngine(ABC):
    """An engine but for local training, which `train_clients` does.

    In a world of several ranks each trains its share of the cohort (`shard=clients`), or all of
    them every client together (`shard=batch`, `fsdp`); a plan for one device runs on rank 0.

    Args:
        module: model, algorithm and optimizer.
        data: set up.
        make_trainer: plan -> a new Trainer for its devices and precision.
        states: what clients keep between rounds.
        world: the ranks of the run.
    """

    name: str

    def __init__(
        self,
        module: LocalModule,
        data: FederatedDataModule,
        make_trainer: Callable[[RoundPlan], L.Trainer],
        states: ClientStates,
        world: World = ALONE,
    ) -> None:
        self.module, self.data, self.states, self.world = module, data, states, world
        self.trainers = Trainers(module, make_trainer)
        self.channel = Channel()
        self.decided: dict[str, Any] = {}
        self._rank_share = RankShare(world.rank, world.size)
        self._evaluate_with(None)

    def _evaluate_with(self, finetune: FineTune | None) -> None:
        self.evaluation = Evaluation(
            self.algorithm, self.data, self.trainers, self.states, self.world, finetune
        )
        self.evaluation_sets = self.evaluation.sets

    def evaluate_finetuned(self, tuner: "CohortEngine", num_epochs: int) -> None:
        """From now on, evaluate clients' models once more after some training that leaves nothing.

        Args:
            tuner: an engine of the same data and world, with `fine_tuning` of this one's module.
            num_epochs: >= 1.
        """
        self._evaluate_with(partial(tuner.fine_tune, num_epochs))

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that the module trains with."""
        return self.module.algorithm

    @property
    def model(self) -> nn.Module:
        """The model that clients take turns in."""
        return self.module.model

    def train(
        self,
        server: Tree,
        cohort: Sequence[int],
        plan: RoundPlan,
        *,
        on_client: Callable[[ClientReport], None],
    ) -> Trained:
        """Train this rank's part of the cohort, and join its sums; see `Engine.train`."""
        together, ranks = self._together(plan), self._ranks(cohort, plan)
        places = list(zip(cohort, ranks, strict=True))
        mine = [k for k, rank in places if rank in {self.world.rank, EVERY_RANK}]
        away = [k for k, rank in places if rank != owner(self.world, k)]
        if self.algorithm.stateful:
            fetch_states(self.world, self.states, away, wanted=mine)
        broadcast = self.algorithm.broadcast(server)
        uploads, reports = reduction_for(self.channel.aggregation, cohort), []

        def deliver(result: LocalResult) -> None:
            reports.append(self._finish(result, uploads, plan.round_idx))
            on_client(reports[-1])

        self.train_clients(mine, broadcast, plan, deliver)
        outcome = uploads.combine(ALONE if together else self.world)
        if not together:
            place = {client_id: i for i, client_id in enumerate(cohort)}
            everyones = [report for part in gather(self.world, reports) for report in part]
            reports = sorted(everyones, key=lambda report: place[report.client_id])
        if self.algorithm.stateful:
            return_states(self.world, self.states, away, trained=mine)
        for number, report in enumerate(reports):
            if report.client_id in outcome.left_out:
                reports[number] = report._replace(status="rejected", reason=NOT_SELECTED)
        return Trained(outcome.mean, reports, outcome.shortage)

    def _together(self, plan: RoundPlan) -> bool:
        batches = plan.strategy == "ddp" and plan.shard == "batch"
        return self.world.size > 1 and (batches or plan.strategy == "fsdp")

    def _ranks(self, cohort: Sequence[int], plan: RoundPlan) -> list[int]:
        """Who trains each client."""
        if self._together(plan):
            return [EVERY_RANK] * len(cohort)
        if plan.strategy != "ddp":
            return [0] * len(cohort)
        sizes = [len(self.data.train_clients.indices_of(k)) for k in cohort]
        homes = [owner(self.world, k) for k in cohort] if self.algorithm.stateful else None
        return assign_clients(sizes, self.world.size, homes)

    @cached_property
    def _joint(self) -> Tree:
        """Leaves that local training changes beside the model, as a new client has them."""
        return joint_leaves(self.algorithm, read_weights(self.model))

    @abstractmethod
    def train_clients(
        self,
        clients: Sequence[int],
        broadcast: Tree,
        plan: RoundPlan,
        deliver: Callable[[LocalResult], None],
    ) -> None:
        """Local training of clients, each delivered as it ends."""

    def _finish(self, result: LocalResult, uploads: Reduction, round_idx: int) -> ClientReport:
        client_id, context, done, num_seen, loss_sum = result
        upload, state = self.algorithm.finish(done, context)
        if math.isfinite(loss_sum) and all_finite(upload) and all_finite(state):
            if self.algorithm.stateful:
                self.states.put(client_id, state)
            origin = partial(self.algorithm.origin, context.server)
            path = {"round_idx": round_idx, "client_id": client_id}
            arrival = self.channel.deliver(upload, origin, **path)
        else:
            arrival = Arrival("rejected", DIVERGED, num_bytes(upload), None)
        if arrival.upload is not None:
            uploads.add(client_id, arrival.upload, self.algorithm.weight(done.num_examples))
        return ClientReport(
            client_id=client_id,
            num_examples=done.num_examples,
            num_seen=num_seen,
            num_steps=done.num_steps,
            loss=loss_sum / max(num_seen, 1),
            up_bytes=arrival.num_bytes,
            status=arrival.status,
            reason=arrival.reason,
        )

    def _client(self, client_id: int, broadcast: Tree) -> Tree:
        state = self.states.get(client_id)
        return self.algorithm.client_state(broadcast) if state is None else state

    def _begin(
        self, client_id: int, broadcast: Tree, plan: RoundPlan
    ) -> tuple[Context, Tree, ClientDataModule]:
        """What a client starts from: context, state of its local optimizer, data."""
        client = self._client(client_id, broadcast)
        start = self.algorithm.start(broadcast, client)
        optimizer = self.algorithm.optimizer
        data = self.data.client(
            client_id,
            batching=plan.batching._replace(limit=self.trainers.trainer(plan).train_limit),
            round_idx=plan.round_idx,
            share=self._rank_share if self._together(plan) else WHOLE,
        )
        seed_torch(self.data.seed, "local training", plan.round_idx, client_id)
        return (
            Context(broadcast, client, start, plan.lr),
            optimizer(broadcast, client) if optimizer else {},
            data,
        )

    def evaluate(self, server: Tree, plan: RoundPlan) -> dict[str, GroupMetrics]:
        """Predict every evaluation example once, a part on every rank; see `Engine.evaluate`."""
        plan = for_evaluation(plan)
        return self.evaluation(server, plan, together=self._together(plan))

    def fine_tune(
        self, num_epochs: int, weights: dict[int, Tree], plan: RoundPlan
    ) -> dict[int, Tree]:
        """Weights by client after some epochs of `FINE_TUNING`; nothing else is left of it.

        Args:
            num_epochs: >= 1.
            weights: where each client starts.
            plan: gives batches and learning rate.
        """
        tuned: dict[int, Tree] = {}

        def deliver(result: LocalResult) -> None:
            tuned[result.client_id] = result.done.weights

        for client_id, own in weights.items():
            self.states.put(client_id, own)
        plan = plan._replace(local_epochs=num_epochs, local_steps=None)
        self.train_clients(list(weights), {}, plan, deliver)
        for client_id in weights:
            self.states.drop(client_id)
        return tuned

    def recalibrate(self, server: Tree, cohort: Sequence[int], plan: RoundPlan) -> Recalibrated:
        """Measure BatchNorm statistics in batches mixed over the cohort; see `Engine`."""
        plan = for_evaluation(plan)
        trainer, model = self.trainers.trainer(plan).trainer, self.trainers.module(plan).model
        device = trainer.strategy.root_device
        write_weights(model, server)
        if model is self.model:  # a sharded one is there
            model.to(device)
        mixed = np.concatenate([self.data.train_clients.indices_of(k) for k in cohort])
        mixed = generator(self.data.seed, "recalibrate", plan.round_idx).permutation(mixed)
        loader = self.data.eval_loader(mixed)

        def inputs() -> Iterator[Tensor]:
            for batch in loader:
                if len(batch.targets) > 1 or len(mixed) == 1:  # one example has no variance
                    dtype = next(self.model.parameters()).dtype
                    yield self.data.examples.transform(batch.inputs.to(device), dtype=dtype)

        with trainer.precision_plugin.forward_context():
            recalibrate(model, inputs())
        self.model.cpu()
        sent = recalibration_bytes(self.model, self.algorithm.broadcast(server))
        return Recalibrated({**server, "buffers": read_buffers(model)}, *sent)

    def close(self) -> None:
        """Let profilers describe the whole run, and workers end."""
        self.trainers.close()
        self.data.close()
        self.states.close()
