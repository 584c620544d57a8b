"""Evaluation: every example predicted once a pass, by the server's model or clients' own."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from flfast.algorithms.algorithm import Algorithm
from flfast.datamodules.batches import RankShare
from flfast.datamodules.evaluation_sets import EvaluationDataModule
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.client_state_placement import fetch_states, owner
from flfast.distributed.world import World, gather
from flfast.evaluation.metrics import GroupMetrics, set_metrics
from flfast.evaluation.personal_models import OwnModels, worth_stacking
from flfast.lit.predictions import Predictions
from flfast.lit.trainers import Trainers
from flfast.plan import RoundPlan
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, num_bytes
from flfast.state.weights import write_weights

OWN_BYTES = 1 << 28
"""Of clients' own weights in memory at a time, beside their states."""

FineTune = Callable[[dict[int, Tree], RoundPlan], dict[int, Tree]]


class Evaluation:
    """The passes of an engine's evaluation.

    Args:
        algorithm: says whose models there are.
        data: set up.
        trainers: their Trainers and modules predict.
        states: what clients keep.
        world: the ranks, which share every pass.
        finetune: own weights by client -> what some more training makes of them; None is off.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: FederatedDataModule,
        trainers: Trainers,
        states: ClientStates,
        world: World,
        finetune: FineTune | None,
    ) -> None:
        self.algorithm, self.data, self.trainers = algorithm, data, trainers
        self.states, self.world, self.finetune = states, world, finetune
        passes: list[tuple[str, ...]] = []
        if algorithm.evaluate_server:
            passes.append(("global", "local", "new"))
        if algorithm.personal is not None:
            passes.append(("personal",))
        # Validation reads the model that would be deployed: the client's own, where it has one.
        passes[-1] = (*passes[-1], "val")
        if finetune is not None:
            passes.append(("finetuned", "new_finetuned"))
        self._passes = passes
        self._held_out = set(data.held_out.tolist())
        self._data = lru_cache(maxsize=None, typed=True)(
            partial(EvaluationDataModule, data, share=RankShare(world.rank, world.size))
        )
        whole = (self._data(names, limit=1.0) for names in passes)
        self.sets = {name for evaluation in whole for name in evaluation.sets}

    def __call__(
        self, server: Tree, plan: RoundPlan, *, together: bool
    ) -> dict[str, GroupMetrics]:
        """Metrics by set; collective.

        Args:
            server: server state.
            plan: how to predict and fine-tune.
            together: all ranks predict every batch together.
        """
        trainer, module = self.trainers.trainer(plan), self.trainers.module(plan)
        results = {}
        for names in self._passes:
            data = self._data(names, limit=trainer.test_limit, shard_batches=together)
            if not data.sets:
                continue
            module.predictions.reset()
            if data.personal:
                self._predict_own(server, plan, data, tuned="finetuned" in names)
            elif len(data.indices):
                write_weights(module.model, server)
                trainer.test(module, data)
            predictions = module.predictions.collect(self.data.num_classes)
            results.update(self._grouped(_on_host_if_needed(predictions), data))
        return results

    def _grouped(
        self, predictions: Predictions, data: EvaluationDataModule
    ) -> dict[str, GroupMetrics]:
        """Metrics of all sets; every rank sums up some of them, the largest first."""
        order = sorted(data.sets, key=lambda name: -len(data.sets[name].positions))
        mine = order[self.world.rank :: self.world.size]
        parts = gather(
            self.world, {name: set_metrics(predictions, data.sets[name]) for name in mine}
        )
        found = {name: metrics for part in parts for name, metrics in part.items()}
        return {name: metrics for name in data.sets if (metrics := found[name]) is not None}

    def _predict_own(
        self, server: Tree, plan: RoundPlan, data: EvaluationDataModule, *, tuned: bool
    ) -> None:
        trainer, module = self.trainers.trainer(plan), self.trainers.module(plan)
        most = max(1, OWN_BYTES // max(1, num_bytes(_weights(server))))
        for part in data.parts(most):
            weights = self._own(part.clients, server, together=data.shard_batches)
            if tuned:
                assert self.finetune is not None
                weights = self.finetune(weights, plan)
            module.personal_models = OwnModels(
                module.model,
                weights,
                stack=not data.shard_batches and worth_stacking(module.model),
            )
            trainer.test(module, part)
        module.personal_models = None

    def _own(self, clients: Sequence[int], server: Tree, *, together: bool) -> dict[int, Tree]:
        """The weights that clients are evaluated with, the server's where they have none."""
        weights = dict.fromkeys(clients, _weights(server))
        personal = self.algorithm.personal
        if personal is None:
            return weights
        broadcast = self.algorithm.broadcast(server)
        if together:  # a client's state lives on one rank, and all of them predict for it
            fetch_states(self.world, self.states, clients, wanted=clients)
        for client_id in set(clients) - self._held_out:
            state = self.states.get(client_id)
            state = self.algorithm.client_state(broadcast) if state is None else state
            weights[client_id] = personal(broadcast, state)
            if together and owner(self.world, client_id) != self.world.rank:
                self.states.drop(client_id)
        return weights


def for_evaluation(plan: RoundPlan) -> RoundPlan:
    """The plan of ranks that predict alone, each on its own device, whatever training does."""
    # Unless no rank has the whole model.
    alone = plan._replace(strategy="single", shard="clients")
    return plan if plan.strategy == "fsdp" else alone


def _weights(server: Tree) -> Tree:
    return {kind: server[kind] for kind in ("params", "buffers")}


def _on_host_if_needed(predictions: Predictions) -> Predictions:
    # Apple's GPUs have no float64, in which sums and ranks are exact.
    if predictions.loss.device.type != "mps":
        return predictions
    return Predictions(*(tensor.cpu() for tensor in predictions))
