"""Evaluation passes: every example is predicted once, by the server's or by personal models."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch

from flfast.algorithms.contract.downloads import Downloads
from flfast.datamodules.batches import RankShare
from flfast.datamodules.evaluation_sets import (
    ATTACK,
    EvaluationDataModule,
    EvaluationPart,
    EvaluationSet,
)
from flfast.distributed.assignment import fetch_states, owner
from flfast.distributed.world import World, gather
from flfast.engines.evaluation.joined_forward import JoinedForward
from flfast.engines.evaluation.measured_set import MeasuredSet
from flfast.engines.evaluation.metrics import GroupMetrics, set_metrics
from flfast.engines.evaluation.personal_models import PersonalModels, faster_vmapped
from flfast.engines.site import Site
from flfast.lit.local_module import LocalModule
from flfast.lit.predictions import Predict, PredictionStore
from flfast.lit.strategies.fsdp import ShardedModule
from flfast.state.plan import RoundPlan
from flfast.state.store import own_state
from flfast.state.tree import Tree, num_bytes
from flfast.state.weights import model_weights, write_weights
from flfast.tasks.factored_logits import large_factored
from flfast.tasks.task_type import Statistics

PERSONAL_BYTES = 1 << 28
"""Most bytes of personal weights in memory at a time, in addition to client states."""

FineTune = Callable[[dict[int, Tree], RoundPlan], dict[int, Tree]]
"""(weights by client, plan) -> fine-tuned weights by client."""


class Evaluation:
    """The evaluation passes of an engine; all ranks of the site's world share every pass.

    `finetune` is further local training before the last pass; None is off.

    Attributes:
        sets: names of all evaluation sets that are not empty.
        largest: bytes of the largest model of a client, if it is not the server's.
    """

    largest = 0

    def __init__(self, site: Site, finetune: FineTune | None) -> None:
        self._site, self._finetune = site, finetune
        algorithm, data, world = site.algorithm, site.data, site.world
        passes: list[tuple[str, ...]] = []
        if algorithm.evaluate_server:
            passes.append(("global", "local", "new", "val"))
            if data.backdoor is not None:
                passes.append((ATTACK,))
        if algorithm.personal is not None:
            passes.append(("personal", "personal_val"))
        if finetune is not None:
            passes.append(("finetuned", "new_finetuned"))
        self._passes = passes
        self._forwards: dict[LocalModule, JoinedForward] = {}
        self._held_out = set(data.held_out.tolist())
        self._data = lru_cache(maxsize=None, typed=True)(
            partial(EvaluationDataModule, data, rank_share=RankShare(world.rank, world.size))
        )
        self._whole = lru_cache(maxsize=None, typed=True)(partial(EvaluationDataModule, data))
        unlimited = (self._data(names, limit=1.0) for names in passes)
        self.sets = {name for evaluation in unlimited for name in evaluation.sets}

    def __call__(
        self, server: Tree, plan: RoundPlan, *, together: bool, fraction: float = 1.0
    ) -> dict[str, GroupMetrics]:
        """Metrics by set; collective.

        `together`: every batch is divided over all ranks, as FSDP requires. `fraction` is of each
        group's examples.
        """
        found = self.predict(server, plan, self._passes, together=together, fraction=fraction)
        task_type, world = self._site.data.examples.task_type, self._site.world
        sets = {
            name: (predictions, part)
            for data, predictions in found
            for name, part in data.sets.items()
        }
        # Every rank computes some metrics, distributed by size.
        order = sorted(sets, key=lambda name: -len(sets[name][1].positions))
        share = order[world.rank :: world.size]
        own = {name: set_metrics(task_type, *sets[name]) for name in share}
        parts = gather(world, own, "metrics")
        metrics = {name: value for part in parts for name, value in part.items()}
        return {name: value for name in sets if (value := metrics[name]) is not None}

    def measure(
        self, server: Tree, plan: RoundPlan, passes: Sequence[tuple[str, ...]]
    ) -> list[MeasuredSet]:
        """Every set of the passes that has examples, with predictions; on a single rank."""
        found = self.predict(server, plan, passes, together=False)
        task_type = self._site.data.examples.task_type
        return [
            MeasuredSet(data, name, metrics, _rows(predictions, part))
            for data, predictions in found
            for name, part in data.sets.items()
            if (metrics := set_metrics(task_type, predictions, part)) is not None
        ]

    def predict(
        self,
        server: Tree,
        plan: RoundPlan,
        passes: Sequence[tuple[str, ...]],
        *,
        together: bool,
        fraction: float = 1.0,
    ) -> list[tuple[EvaluationDataModule, Statistics]]:
        """(sets, predictions) of every pass that has examples; collective.

        The ranks exchange predictions once, after the last pass. `passes` are names of sets, as of
        `EvaluationDataModule`; the rest is as of a call.
        """
        self._site.fold_server(server)
        trainer, module = self._site.trainers.trainer(plan), self._site.trainers.module(plan)
        modules, own = list[EvaluationDataModule](), list[Statistics]()
        for names in passes:
            limit = trainer.test_limit
            data = self._data(names, limit=limit, shard_batches=together, fraction=fraction)
            if not data.sets:
                continue
            store = PredictionStore(module.task_type)
            if data.personal:
                self._predict_personal(server, plan, data, store)
            elif len(data.indices):
                write_weights(module.model, server)
                with module.predicting(self._server_model(module), store):
                    trainer.test(module, data)
            modules.append(data)
            own.append(store.collect(self._site.data.num_classes))
        return list(zip(modules, _of_all_ranks(self._site.world, own), strict=True))

    def _server_model(self, module: LocalModule) -> Predict:
        """What predicts batches with the weights that the module has."""
        model = module.model
        if module.task_type.reads_factors and not isinstance(module, ShardedModule):
            return lambda batch: large_factored(model, model, batch.inputs)
        if module not in self._forwards:
            self._forwards[module] = JoinedForward(model)
        return lambda batch: self._forwards[module](batch.inputs)

    def _predict_personal(
        self, server: Tree, plan: RoundPlan, data: EvaluationDataModule, store: PredictionStore
    ) -> None:
        size = max(1, num_bytes(model_weights(server)), self.largest)
        num_clients = max(1, PERSONAL_BYTES // size)
        for part in data.parts(num_clients):
            self.predict_own(server, plan, (data, part), store)

    def predict_own(
        self,
        server: Tree,
        plan: RoundPlan,
        examples: tuple[EvaluationDataModule, EvaluationPart],
        store: PredictionStore,
    ) -> None:
        """Predict the examples of a part of the data with clients' own models."""
        data, part = examples
        self._site.fold_server(server)
        trainer, module = self._site.trainers.trainer(plan), self._site.trainers.module(plan)
        weights = self.personal_weights(part.clients, server, together=data.shard_batches)
        if data.finetuned:
            assert self._finetune is not None
            weights = self._finetune(weights, plan)
        models = PersonalModels(
            module.model,
            module.task_type,
            weights,
            vmapped=not data.shard_batches and faster_vmapped(module.model),
            predict=None if data.finetuned else self._site.algorithm.predict,
        )
        with module.predicting(models, store):
            trainer.test(module, part)

    def personal_weights(
        self, clients: Sequence[int], server: Tree, *, together: bool
    ) -> dict[int, Tree]:
        """Weights to evaluate clients with: personal ones, or those of the server state.

        The clients' states are on this rank, unless all ranks call this for them `together`.
        """
        weights = dict.fromkeys(clients, model_weights(server))
        personal = self._site.algorithm.personal
        if personal is None:
            return weights
        taught = [client_id for client_id in clients if client_id not in self._held_out]
        downloads = Downloads(self._site.algorithm, server, self._site.records, taught)
        if together:  # a client's state is on one rank, but all ranks predict for the client
            fetch_states(self._site.world, self._site.states, clients, wanted=clients)
        for client_id in taught:
            download, state = downloads(client_id), own_state(self._site.states.get(client_id))
            state = self._site.algorithm.client_state(download) if state is None else state
            weights[client_id] = personal(download, state)
            if together and owner(self._site.world, client_id) != self._site.world.rank:
                self._site.states.drop(client_id)
        return weights


def for_evaluation(plan: RoundPlan) -> RoundPlan:
    """The plan for evaluation: every rank predicts by itself on one device, except with FSDP."""
    single = plan._replace(strategy="single", shard="clients")
    return plan if plan.strategy == "fsdp" else single


def _rows(predictions: Statistics, part: EvaluationSet) -> Statistics:
    return {name: rows[part.positions] for name, rows in predictions.items()}


def _of_all_ranks(world: World, predictions: list[Statistics]) -> list[Statistics]:
    """Predictions of every pass, those of rank 0 first; collective."""
    if world.size == 1:
        return predictions
    ranks = gather(world, predictions, "predictions")
    return [
        {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*ranks, strict=True)
    ]
