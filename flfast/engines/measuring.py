"""Measures: passes over a client's training examples between the stages of local training.

Both engines run them here, so that they measure the same numbers.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import lightning as L
import torch
from torch import nn

from flfast.algorithms.contract import Context, Measure
from flfast.datamodules.batches import Batch
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.samples import moved
from flfast.lit.module_task import local_task
from flfast.lit.task import evaluation_mode
from flfast.state.precision import placed, widened
from flfast.state.tree import Tree, leaves, tree_map
from flfast.state.weights import by_name
from flfast.tasks.task_type import TaskType


class Measuring(NamedTuple):
    """Adds up measures over clients' training examples, without augmentation.

    Attributes:
        model: model of the rank; its own weights are not read.
        task_type: gives the loss.
        trainer: gives device and precision.
        data: the population.
    """

    model: nn.Module
    task_type: TaskType
    trainer: L.Trainer
    data: FederatedDataModule

    def __call__(
        self, measure: Measure, weights: Tree, client_id: int, context: Context
    ) -> Context:
        """The context with the sums of a measure, which are put where its other tensors are.

        Weights, joint leaves included, and context are those of a client, on any device.
        """
        device, first = self.trainer.strategy.root_device, next(self.model.parameters())
        home, like = first.device, first.dtype
        self.model.to(device)
        task, total = local_task(self.model, self.task_type), Tree()
        # Gradients cannot be taken of tensors of inference mode, in which the fused engine trains.
        with torch.inference_mode(mode=False), evaluation_mode(self.model):
            copy = partial(tree_map, lambda leaf: placed(leaf.detach(), device, copy=True))
            params, ctx = by_name(copy(weights)), context.map(copy)
            for batch in self._batches(measure, client_id, ctx, like=like):
                with self.trainer.precision_plugin.forward_context():
                    sums = measure.sums(task, params, batch, ctx)
                sums = tree_map(lambda leaf: widened(leaf.detach()), sums)
                total = tree_map(torch.add, total, sums) if total else sums
        self.model.to(home)
        there = next(leaves(context.start)).device
        found = tree_map(lambda leaf: placed(leaf, there), total)
        return context._replace(measured={**context.measured, measure.name: found})

    def _batches(
        self, measure: Measure, client_id: int, context: Context, *, like: torch.dtype
    ) -> Iterator[Batch]:
        """The batches of a measure on the device, whose inputs get the data type `like`."""
        if measure.public:
            yield Batch(**context.facts["public"])
            return
        device = self.trainer.strategy.root_device
        indices = self.data.train_clients.indices_of(client_id)
        for given in self.data.eval_loader(indices, device=device):
            inputs = self.data.examples.transform(moved(given.inputs, device), dtype=like)
            yield given._replace(inputs=inputs, targets=given.targets.to(device))
