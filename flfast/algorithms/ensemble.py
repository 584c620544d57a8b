"""Distillation of an ensemble: a student learns the mean of the logits of K teachers."""

import torch
from torch import Tensor

from flfast.algorithms.algorithm import Algorithm
from flfast.algorithms.client import Context, Task
from flfast.algorithms.divergence import divergence
from flfast.algorithms.several_models import one_of
from flfast.datamodules.batches import Batch
from flfast.state.tree import Tree, leaves, tree_map
from flfast.state.weights import by_name, model_weights


def ensemble_distillation(name: str) -> Algorithm:
    """A call that minimises KL(softmax of the teachers' mean logits, softmax of the student's).

    It reads the student in `params` and `buffers`, and the teachers in `teachers`, each leaf
    [K, ...]. Teachers predict in evaluation mode. Labels are not read. The optimizer is Adam.

    Args:
        name: of the call.
    """
    return Algorithm(
        name=name,
        weighting="uniform",
        server_state=_before_training,
        broadcast=lambda server: {**model_weights(server), "teachers": server["teachers"]},
        make_optimizer=torch.optim.Adam,
        loss=_loss,
    )


def _before_training(weights: Tree) -> Tree:
    """A state with a teacher that differs from the student: engines try their steps in it."""
    student = model_weights(weights)
    return {**student, "teachers": tree_map(lambda leaf: torch.zeros_like(leaf)[None], student)}


def _loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
    teachers = ctx.server["teachers"]
    models = (one_of(teachers, place) for place in range(len(next(leaves(teachers)))))
    logits = torch.stack([task.fixed_logits(by_name(model), batch) for model in models])
    return task.mean(divergence(task.logits(params, batch), logits.mean(0)))
