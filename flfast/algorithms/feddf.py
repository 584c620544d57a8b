"""FedDF: after averaging, the server distils the ensemble of the clients' models into the mean.

Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning.
NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2006.07242

    x = sum_k n_k / n * x_k
    x := Adam on KL(softmax(mean_k f(x_k, d)), softmax(f(x, d))),   server_steps times

f are logits, d are batches of the server's own examples (`split.server_examples`), whose labels
are not read. Models x_k predict in evaluation mode, x in training mode. Adam starts afresh every
round, whatever the optimizer of the clients. The paper takes up to 10,000 steps, anneals the rate
along a cosine and stops early; here their number and the rate are fixed. The authors' code also
clips gradients, and returns the best of the models that it validated. The server gets the models
x_k in rows, so that a robust rule does not act on them.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Part, Round, Task, Weighting
from flfast.algorithms.kit.degenerate import degenerate
from flfast.algorithms.kit.divergence import divergence
from flfast.algorithms.kit.model_groups import weighted_mean
from flfast.algorithms.kit.several_models import one_of
from flfast.state.options import Count, NonNegativeInt, Positive
from flfast.state.tree import Tree, add, leaves, tree_map
from flfast.state.weights import by_name, model_weights


def feddf(
    *,
    server_steps: NonNegativeInt,
    server_lr: Positive,
    server_batch_size: Count,
    weighting: Weighting,
) -> Algorithm:
    """FedAvg and ensemble distillation; needs examples of the server."""
    degenerate(server_steps == 0, "algorithm.server_steps=0 turns FedDF into FedAvg")
    distillation = ensemble_distillation()

    def run(server: Tree, rnd: Round) -> Tree:
        uploads = rnd.call(server)
        models, weights = add(model_weights(server), uploads.rows), uploads.weights
        mean = tree_map(
            lambda rows, like: weighted_mean(rows, weights).to(like.dtype),
            *(models, model_weights(server)),
        )
        if server_steps == 0:
            return {**server, **mean}
        student = rnd.on_server(
            {**mean, "teachers": models},
            distillation,
            steps=server_steps,
            lr=server_lr,
            batch_size=server_batch_size,
        )
        return {**server, **add(mean, student)}

    return Algorithm(
        name="feddf",
        tasks=("classification",),
        weighting=weighting,
        parts={"params": Part("rows"), "buffers": Part("rows")},
        round=run,
        server_calls=(distillation,) if server_steps else (),
    )


def ensemble_distillation() -> Algorithm:
    """A call that minimises KL(softmax of the teachers' mean logits, softmax of the student's).

    It reads the student in `params` and `buffers`, and the teachers in `teachers`, each leaf
    [K, ...]. Teachers predict in evaluation mode. Labels are not read. The optimizer is Adam.
    """
    return Algorithm(
        name="feddf's distillation",
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
