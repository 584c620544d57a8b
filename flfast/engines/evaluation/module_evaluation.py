"""Evaluation of a user's LightningModule: each group of each set by the module's own steps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import torch

from flfast.datamodules.evaluation_sets import EvaluationDataModule, EvaluationSet
from flfast.distributed.assignment import owner
from flfast.distributed.world import gather
from flfast.engines.evaluation.measured_set import MeasuredSet
from flfast.engines.evaluation.metrics import GroupMetrics
from flfast.engines.evaluation.module_steps import evaluation_step, measured, predicted
from flfast.engines.evaluation.passes import Evaluation, FineTune
from flfast.engines.site import Site
from flfast.lit.user_loaders import evaluation_batches
from flfast.lit.user_module import UserModule, without_traces
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import model_weights, write_weights
from flfast.tasks.names import headline, in_order
from flfast.tasks.task_type import Statistics


def evaluation_of(site: Site, finetune: FineTune | None) -> Evaluation:
    """The evaluation of a site's model: by its task, or by a module's own steps."""
    kind = ModuleEvaluation if isinstance(site.model, UserModule) else Evaluation
    return kind(site, finetune)


class ModuleEvaluation(Evaluation):
    """See `Evaluation`. Groups are divided over the ranks; a client's state lives on one of them.

    Metric objects are computed over a group's examples, and never averaged over batches. A set on
    which the module measures nothing has no metrics.
    """

    def __call__(
        self, server: Tree, plan: RoundPlan, *, together: bool, fraction: float = 1.0
    ) -> dict[str, GroupMetrics]:
        """Metrics by set; see `Evaluation`."""
        if not self._site.module.task_type.metrics:
            return {}
        found = self._measured(server, plan, self._passes, fraction=fraction)
        return {part.name: part.metrics for part in found if part.metrics.values}

    def measure(
        self, server: Tree, plan: RoundPlan, passes: Sequence[tuple[str, ...]]
    ) -> list[MeasuredSet]:
        """See `Evaluation`; predictions are what `predict_step` returns."""
        return [*self._measured(server, plan, passes, predicts=True)]

    def _measured(
        self,
        server: Tree,
        plan: RoundPlan,
        passes: Sequence[tuple[str, ...]],
        *,
        fraction: float = 1.0,
        predicts: bool = False,
    ) -> Iterator[MeasuredSet]:
        limit = self._site.trainers.trainer(plan).test_limit
        for names in passes:
            data = self._whole(names, limit=limit, fraction=fraction)
            for name, part in data.sets.items():
                weights = self._weights(data, part, server, plan)
                groups = [*self._of_groups(data, name, weights, plan, predicts=predicts)]
                values = {group: found for group, found, _ in groups}
                ranks = gather(self._site.world, values, f"metrics of {name}")
                metrics = _as_metrics(part, {k: v for rank in ranks for k, v in rank.items()})
                predictions = _joined(part, {group: rows for group, _, rows in groups})
                yield MeasuredSet(data, name, metrics, predictions)

    def _weights(
        self, data: EvaluationDataModule, part: EvaluationSet, server: Tree, plan: RoundPlan
    ) -> Mapping[int, Tree]:
        """Weights of each group that this rank evaluates."""
        rank, size = self._site.world.rank, self._site.world.size
        groups = part.groups.tolist()
        if not data.personal:
            return dict.fromkeys(groups[rank::size], model_weights(server))
        own = [k for k in groups if owner(self._site.world, k) == rank]
        weights = self.personal_weights(own, server, together=False)
        if data.finetuned:
            assert self._finetune is not None
            weights = self._finetune(weights, plan)
        return weights

    def _of_groups(
        self,
        data: EvaluationDataModule,
        name: str,
        weights: Mapping[int, Tree],
        plan: RoundPlan,
        *,
        predicts: bool,
    ) -> Iterator[tuple[int, dict[str, float], Statistics]]:
        """(group, values by name, predictions) of each group with weights."""
        site, part = self._site, data.sets[name]
        trainer, model = site.trainers.trainer(plan).trainer, cast(UserModule, site.module.model)
        validation = name.removeprefix("personal_") == "val"
        leaves_traces = evaluation_step(model, validation=validation) == "training_step"
        model.to(trainer.strategy.root_device)
        written: Tree | None = None
        for group, own in weights.items():
            if own is not written:
                write_weights(model, own)
                written = own
            alone = without_traces(model) if leaves_traces else model
            indices = data.indices[part.positions[part.group == group]]
            batches = evaluation_batches(site.data, indices, alone)
            about = {"datamodule": site.data.examples.datamodule}
            values = measured(alone, batches, trainer, validation=validation, **about)
            batches = evaluation_batches(site.data, indices, alone) if predicts else iter(())
            yield group, values, predicted(alone, batches, trainer, **about)


def _joined(part: EvaluationSet, predictions: Mapping[int, Statistics]) -> Statistics:
    """The predictions of all groups in the order of the set."""
    names = next(iter(predictions.values()), {})
    if not names:
        return {}
    order = np.argsort(np.concatenate([np.flatnonzero(part.group == k) for k in predictions]))
    parts = {name: torch.cat([own[name] for own in predictions.values()]) for name in names}
    return {name: rows[torch.from_numpy(order)] for name, rows in parts.items()}


def _as_metrics(part: EvaluationSet, measured: Mapping[int, dict[str, float]]) -> GroupMetrics:
    groups = part.groups.tolist()
    num = torch.from_numpy(np.bincount(part.place, minlength=len(groups)))
    names = in_order(name for values in measured.values() for name in values)
    rows = [[measured[k].get(name, torch.nan) for k in groups] for name in names]
    values = dict(zip(names, torch.tensor(rows, dtype=torch.float64), strict=True))
    groups, best = torch.tensor(groups), headline(names)
    return GroupMetrics(groups, num, num.double(), values, {}, best, tuple(names))
