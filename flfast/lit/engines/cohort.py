"""What all engines share: ranks, states, the mean of uploads, evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from flfast.algorithms.algorithm import Algorithm, Context, Finished, joint_leaves
from flfast.datamodules.batches import WHOLE, RankShare
from flfast.datamodules.evaluation import EvaluationDataModule
from flfast.datamodules.federated import ClientDataModule, FederatedDataModule
from flfast.lit.batchnorm import recalibrate
from flfast.lit.engines.engine import ClientReport, Trained
from flfast.lit.engines.trainers import Trainers
from flfast.lit.metrics import GroupMetrics, Predictions, group_metrics
from flfast.lit.module import LocalModule
from flfast.lit.ownership import fetch_states, owner, return_states
from flfast.lit.world import (
    ALONE,
    World,
    deal,
    gather,
    reduce_mean,
)
from flfast.plan import RoundPlan
from flfast.randomness import generator, seed_torch
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, WeightedMean, all_finite, num_bytes
from flfast.state.weights import read_buffers, read_weights, write_weights


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
        passes: list[tuple[str, ...]] = []
        if self.algorithm.evaluate_server:
            passes.append(("global", "local"))
        if self.algorithm.personal is not None:
            passes.append(("personal",))
        # Validation reads the model that would be deployed: the client's own, where it has one.
        self._passes = [*passes[:-1], (*passes[-1], "val")]
        self._rank_share = RankShare(world.rank, world.size)
        self._evaluations = lru_cache(maxsize=None, typed=True)(
            partial(EvaluationDataModule, data, share=self._rank_share)
        )
        whole = (self._evaluations(names, limit=1.0) for names in self._passes)
        self.evaluation_sets = {name for evaluation in whole for name in evaluation.sets}

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
        together = self._together(plan)
        at_home = plan.strategy == "ddp" and not together
        mine = list(cohort) if together else self._share(cohort, plan)
        moved = self.algorithm.stateful and self.world.size > 1 and not at_home
        if moved:
            fetch_states(self.world, self.states, cohort)
        broadcast = self.algorithm.broadcast(server)
        mean, reports = WeightedMean(), []

        def deliver(result: LocalResult) -> None:
            reports.append(self._finish(result, mean))
            on_client(reports[-1])

        self.train_clients(mine, broadcast, plan, deliver)
        if not together:
            mean = reduce_mean(self.world, mean)
            place = {client_id: i for i, client_id in enumerate(cohort)}
            everyones = [report for part in gather(self.world, reports) for report in part]
            reports = sorted(everyones, key=lambda report: place[report.client_id])
        if moved:
            return_states(self.world, self.states, cohort, trained=mine)
        return Trained(mean.result() if mean.weight else None, reports)

    def _together(self, plan: RoundPlan) -> bool:
        batches = plan.strategy == "ddp" and plan.shard == "batch"
        return self.world.size > 1 and (batches or plan.strategy == "fsdp")

    def _share(self, cohort: Sequence[int], plan: RoundPlan) -> list[int]:
        if plan.strategy != "ddp":
            return list(cohort) if self.world.rank == 0 else []
        if self.algorithm.stateful:
            ranks = [owner(self.world, k) for k in cohort]
        else:
            sizes = [len(self.data.train_clients.of(k)) for k in cohort]
            ranks = deal(sizes, self.world.size)
        return [k for k, rank in zip(cohort, ranks, strict=True) if rank == self.world.rank]

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

    def _finish(self, result: LocalResult, mean: WeightedMean) -> ClientReport:
        client_id, context, done, num_seen, loss_sum = result
        upload, state = self.algorithm.finish(done, context)
        rejected = not (all_finite(upload) and all_finite(state))
        if not rejected:
            mean.add(upload, self.algorithm.weight(done.num_examples))
            if self.algorithm.stateful:
                self.states.put(client_id, state)
        return ClientReport(
            client_id=client_id,
            num_examples=done.num_examples,
            num_seen=num_seen,
            num_steps=done.num_steps,
            loss=loss_sum / max(num_seen, 1),
            up_bytes=num_bytes(upload),
            rejected=rejected,
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
        plan = _for_evaluation(plan)
        trainer, module = self.trainers.trainer(plan), self.trainers.module(plan)
        together = self._together(plan)
        broadcast = self.algorithm.broadcast(server)
        results = {}
        for names in self._passes:
            data = self._evaluations(names, limit=trainer.test_limit, together=together)
            if not data.sets:
                continue
            write_weights(module.model, server)
            module.personal = (
                self._personal(broadcast, together=together) if data.personal else None
            )
            module.predictions.reset()
            if len(data.indices):
                trainer.test(module, data)
            predictions = module.predictions.collect(self.data.num_classes)
            results.update(_grouped(_on_host_if_needed(predictions), data))
        return results

    def _personal(self, broadcast: Tree, *, together: bool) -> Callable[[int], Tree]:
        personal = self.algorithm.personal
        assert personal is not None

        def weights(client_id: int) -> Tree:
            if together:  # a client's state lives on one rank, and all of them predict for it
                fetch_states(self.world, self.states, [client_id])
            own = personal(broadcast, self._client(client_id, broadcast))
            if together and owner(self.world, client_id) != self.world.rank:
                self.states.drop(client_id)
            return own

        return weights

    def recalibrate(self, server: Tree, cohort: Sequence[int], plan: RoundPlan) -> Tree:
        """Measure BatchNorm statistics in batches mixed over the cohort; see `Engine`."""
        plan = _for_evaluation(plan)
        trainer, model = self.trainers.trainer(plan).trainer, self.trainers.module(plan).model
        device = trainer.strategy.root_device
        write_weights(model, server)
        if model is self.model:  # a sharded one is there
            model.to(device)
        mixed = np.concatenate([self.data.train_clients.of(k) for k in cohort])
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
        return {**server, "buffers": read_buffers(model)}

    def close(self) -> None:
        """Let profilers describe the whole run, and workers end."""
        self.trainers.close()
        self.data.close()


def _for_evaluation(plan: RoundPlan) -> RoundPlan:
    # Every rank predicts alone, on its own device, whatever training does; unless no rank has the
    # whole model.
    alone = plan._replace(strategy="single", shard="clients")
    return plan if plan.strategy == "fsdp" else alone


def _on_host_if_needed(predictions: Predictions) -> Predictions:
    # Apple's GPUs have no float64, in which sums and ranks are exact.
    if predictions.loss.device.type != "mps":
        return predictions
    return Predictions(*(tensor.cpu() for tensor in predictions))


def _grouped(predictions: Predictions, data: EvaluationDataModule) -> dict[str, GroupMetrics]:
    device = predictions.loss.device
    results = {}
    for name, part in data.sets.items():
        if len(part.positions):
            positions = torch.from_numpy(part.positions).to(device)
            chosen = Predictions(*(tensor[positions] for tensor in predictions))
            group = torch.from_numpy(part.group).to(device)
            results[name] = group_metrics(chosen, group, part.num_groups)
    return results
