"""Evaluation of a user's LightningModule: each group of each set by the module's own steps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flfast.datamodules.evaluation_sets import EvaluationDataModule, EvaluationSet
from flfast.distributed.client_state_placement import owner
from flfast.distributed.world import gather
from flfast.engines.evaluation.metrics import GroupMetrics
from flfast.engines.evaluation.module_steps import measured
from flfast.engines.evaluation.passes import Evaluation
from flfast.lit.user_loaders import evaluation_batches
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import model_weights, write_weights

_Groups = dict[int, dict[str, float]]
"""What was measured, by group, such as a client, and name."""


class ModuleEvaluation(Evaluation):
    """See `Evaluation`. Groups are divided over the ranks; a client's state lives on one of them.

    Metric objects are computed over a group's examples, and never averaged over batches.
    """

    def __call__(
        self, server: Tree, plan: RoundPlan, *, together: bool, fraction: float = 1.0
    ) -> dict[str, GroupMetrics]:
        """Metrics by set; see `Evaluation`."""
        if not self._site.module.task_type.logged:
            return {}
        limit = self._site.trainers.trainer(plan).test_limit
        found: dict[str, tuple[EvaluationSet, _Groups]] = {}
        for names in self._passes:
            data = self._whole(names, limit=limit, fraction=fraction)
            for name, part in data.sets.items():
                weights = self._weights(name, data, part, server, plan)
                validation = name.removeprefix("personal_") == "val"
                own = dict(self._measured(data, part, weights, plan, validation=validation))
                ranks = gather(self._site.world, own, f"metrics of {name}")
                found[name] = part, {k: v for rank in ranks for k, v in rank.items()}
        names = self._site.module.task_type.logged
        return {name: _as_metrics(part, groups, names) for name, (part, groups) in found.items()}

    def _weights(
        self,
        name: str,
        data: EvaluationDataModule,
        part: EvaluationSet,
        server: Tree,
        plan: RoundPlan,
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

    def _measured(
        self,
        data: EvaluationDataModule,
        part: EvaluationSet,
        weights: Mapping[int, Tree],
        plan: RoundPlan,
        *,
        validation: bool,
    ) -> Iterator[tuple[int, dict[str, float]]]:
        """(group, values by name) of each group with weights."""
        trainer, model = self._site.trainers.trainer(plan).trainer, self._site.module.model
        model.to(trainer.strategy.root_device)
        last: Any = None
        for group, own in weights.items():
            if own is not last:
                write_weights(model, own)
                last = own
            indices = data.indices[part.positions[part.group == group]]
            batches = evaluation_batches(self._site.data, indices, model)
            about = {"datamodule": data.data.examples.datamodule, "validation": validation}
            yield group, measured(model, batches, trainer, **about)
        model.to("cpu")


def _as_metrics(part: EvaluationSet, found: _Groups, names: Sequence[str]) -> GroupMetrics:
    groups = part.groups.tolist()
    num = torch.from_numpy(np.bincount(part.place, minlength=len(groups)))
    there = dict.fromkeys(name for one in found.values() for name in one)
    names = sorted(there, key=lambda name: names.index(name) if name in names else len(names))
    values = {
        name: torch.tensor([found[k].get(name, torch.nan) for k in groups], dtype=torch.float64)
        for name in names
    }
    headline = names[0] if names else "loss"
    values = values or {headline: torch.full((len(groups),), torch.nan, dtype=torch.float64)}
    return GroupMetrics(torch.tensor(groups), num, num.double(), values, {}, headline)
