"""Evaluation of a user's LightningModule: each group of each set by the module's own steps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.evaluation_sets import EvaluationDataModule, EvaluationSet
from flfast.distributed.client_state_placement import owner
from flfast.distributed.world import gather
from flfast.engines.evaluation.metrics import GroupMetrics
from flfast.engines.evaluation.module_steps import measured, predicted, without_traces
from flfast.engines.evaluation.passes import Evaluation
from flfast.lit.user_loaders import evaluation_batches
from flfast.lit.user_module import UserModule
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import model_weights, write_weights
from flfast.tasks.names import headline, in_order
from flfast.tasks.task_type import Statistics


class MeasuredSet(NamedTuple):
    """An evaluation set, what was measured on it, and what `predict_step` returned, [m, ...]."""

    data: EvaluationDataModule
    name: str
    part: EvaluationSet
    metrics: GroupMetrics
    predictions: Statistics


class ModuleEvaluation(Evaluation):
    """See `Evaluation`. Groups are divided over the ranks; a client's state lives on one of them.

    Metric objects are computed over a group's examples, and never averaged over batches.
    """

    def __call__(
        self, server: Tree, plan: RoundPlan, *, together: bool, fraction: float = 1.0
    ) -> dict[str, GroupMetrics]:
        """Metrics by set; see `Evaluation`."""
        if not self._site.module.task_type.metrics:
            return {}
        found = self.measure(server, plan, self._passes, fraction=fraction)
        return {one.name: one.metrics for one in found}

    def measure(
        self,
        server: Tree,
        plan: RoundPlan,
        passes: Sequence[tuple[str, ...]],
        *,
        fraction: float = 1.0,
        predicts: bool = False,
    ) -> Iterator[MeasuredSet]:
        """Every set of the passes that has examples; collective.

        With `predicts` also their predictions, of a single rank.
        """
        limit = self._site.trainers.trainer(plan).test_limit
        for names in passes:
            data = self._whole(names, limit=limit, fraction=fraction)
            for name, part in data.sets.items():
                weights = self._weights(data, part, server, plan)
                about = {"validation": name.removeprefix("personal_") == "val"}
                own = list(self._of_groups(data, part, weights, plan, predicts=predicts, **about))
                values = {group: found for group, found, _ in own}
                ranks = gather(self._site.world, values, f"metrics of {name}")
                everything = {k: v for rank in ranks for k, v in rank.items()}
                predictions = _joined(part, {k: v for k, _, v in own}) if predicts else {}
                metrics = _as_metrics(part, everything)
                yield MeasuredSet(data, name, part, metrics, predictions)

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
        part: EvaluationSet,
        weights: Mapping[int, Tree],
        plan: RoundPlan,
        *,
        validation: bool,
        predicts: bool,
    ) -> Iterator[tuple[int, dict[str, float], Statistics]]:
        """(group, values by name, predictions) of each group with weights."""
        site = self._site
        trainer, model = site.trainers.trainer(plan).trainer, cast(UserModule, site.module.model)
        model, datamodule = without_traces(model), site.data.examples.datamodule
        model.to(trainer.strategy.root_device)
        last: Any = None
        for group, own in weights.items():
            if own is not last:
                write_weights(model, own)
                last = own
            indices = data.indices[part.positions[part.group == group]]
            values = measured(
                model,
                evaluation_batches(site.data, indices, model),
                trainer,
                datamodule=datamodule,
                validation=validation,
            )
            batches = evaluation_batches(site.data, indices, model) if predicts else ()
            yield group, values, predicted(model, batches, trainer, datamodule=datamodule)
        model.to("cpu")


def _joined(part: EvaluationSet, found: Mapping[int, Statistics]) -> Statistics:
    """The predictions of all groups in the order of the set."""
    order = np.argsort(np.concatenate([np.flatnonzero(part.group == k) for k in found]))
    names = next(iter(found.values()), {})
    parts = {name: torch.cat([own[name] for own in found.values()]) for name in names}
    return {name: rows[torch.from_numpy(order)] for name, rows in parts.items()}


def _as_metrics(part: EvaluationSet, found: Mapping[int, dict[str, float]]) -> GroupMetrics:
    groups = part.groups.tolist()
    num = torch.from_numpy(np.bincount(part.place, minlength=len(groups)))
    names = in_order(name for one in found.values() for name in one) or ["loss"]
    values: dict[str, Tensor] = {
        name: torch.tensor([found[k].get(name, torch.nan) for k in groups], dtype=torch.float64)
        for name in names
    }
    spread = headline(names), tuple(names)
    return GroupMetrics(torch.tensor(groups), num, num.double(), values, {}, *spread)
