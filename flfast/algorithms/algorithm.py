"""The contract: an algorithm is a handful of pure functions, written for one client.

Every field of `Algorithm` defaults to FedAvg, so a file states only its difference. No function
knows devices, loggers, configs, or how many clients run at once.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from flfast.datamodules.batches import Batch
from flfast.state.tree import Tree


class Task(Protocol):
    """The model's task, as objectives see it.

    Weights are given by name, those of local training or any others; names that the model does
    not have are left aside. Buffers that are not given are those of local training.
    """

    def __call__(self, params: Tree, batch: Batch) -> Tensor:
        """Mean task loss [] of a batch, or of any part of it."""

    def mean(self, values: Tensor) -> Tensor:
        """Mean [] over the examples of the batch, of a value each, [B]; padding counts nothing."""

    def features(self, weights: Tree, batch: Batch, *, layer: str) -> tuple[Tensor, Tensor]:
        """What enters a layer, [B, D], and the mean task loss []."""

    def fixed_features(self, weights: Tree, batch: Batch, *, layer: str) -> Tensor:
        """What enters a layer, [B, D], of a model in evaluation, without a gradient."""


class LocalStage(NamedTuple):
    """A part of local training, with an optimizer of its own.

    Attributes:
        trains: names of the parameters that it changes; None is all of them.
        epochs: passes over the client's examples; None are the plan's. A plan that counts local
            steps counts those of every stage.
    """

    trains: Collection[str] | None = None
    epochs: int | None = None


Weighting = Literal["samples", "uniform"]


class Context(NamedTuple):
    """What a client's local training may read.

    Attributes:
        server: the broadcast.
        client: this client's state.
        start: the weights local training started from.
        lr: local learning rate of this round, a tensor [] of float64.
        generator: purpose -> a CPU generator of this round and client. A function that draws
            random numbers takes them from it, so that every engine draws the same.
    """

    server: Tree
    client: Tree
    start: Tree
    lr: Tensor
    generator: Callable[[str], torch.Generator]


class Finished(NamedTuple):
    """A client's local training, done.

    Attributes:
        weights: what local training arrived at, `{"params": ..., "buffers": ...}`.
        num_examples: distinct training examples used.
        num_steps: local steps taken.
        optimizer: state of the local optimizer by parameter name; read only for algorithms that
            set `Algorithm.optimizer`.
    """

    weights: Tree
    num_examples: int
    num_steps: int
    optimizer: Tree


class Uploads(NamedTuple):
    """What a cohort sent, as the server sees it.

    Attributes:
        mean: of the uploads, weighted, or what another aggregation has in its place.
        num_clients: uploads in it, >= 1; those of dropped or diverged clients are not.
        population: clients that there are.
    """

    mean: Tree
    num_clients: int
    population: int


class Objective(Protocol):
    """Local objective of one batch."""

    def __call__(self, task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        """Loss [], differentiable in params."""


def _initial(weights: Tree) -> Tree:
    return weights


def _stateless(server: Tree) -> Tree:
    return {}


def _broadcast(server: Tree) -> Tree:
    return {"params": server["params"], "buffers": server["buffers"]}


def _start(broadcast: Tree, client: Tree) -> Tree:
    return {"params": broadcast["params"], "buffers": broadcast["buffers"]}


def _task_loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
    return task(params, batch)


def _upload_weights(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
    return done.weights, ctx.client


def _take_mean(server: Tree, uploads: Uploads) -> Tree:
    return {**server, **uploads.mean}


@dataclass(frozen=True)
class Algorithm:
    """What server and clients compute. Server state, broadcast and uploads are trees.

    Attributes:
        name: for titles and messages.
        weighting: weights of the mean of uploads: training examples used, or 1.
        evaluate_server: whether the server's model is worth evaluating; not if nobody shares.
        server_state: initial weights -> server state, with `params` and `buffers`.
        client_state: broadcast -> state of a client that takes part for the first time. Clients
            keep states between rounds if an algorithm has this function.
        broadcast: server state -> what every client of the cohort receives.
        start: (broadcast, client state) -> weights local training starts from. Leaves that the
            model does not have are changed along: parameters by the local optimizer, buffers
            in place by the objective.
        stages: of local training, one after another over the same examples.
        optimizer: (broadcast, client state) -> state the local optimizer starts with, by
            parameter name; None is a fresh one every round.
        loss: local objective; gets all parameters, and the buffers that the model does not have.
        separable: whether the objective of a batch is a mean over its examples, so that a batch
            may be cut into parts whose gradients add up.
        correct: (gradients, params, context) -> gradients the optimizer sees; None leaves them.
        finish: (`Finished`, context) -> (upload, new client state). What a client only counted,
            such as steps, lies below the key `counts` of an upload and in [0, 2^31): it is not
            attacked, clipped or compared, and robust aggregations take its median.
        origin: broadcast -> upload of a client that learned nothing; learned leaves that it lacks
            are zero then. Attacks and `upload_clip_norm` change how far uploads are from it.
        server_step: (server state, `Uploads`) -> server state.
        personal: (broadcast, client state) -> weights the client is evaluated with; None means
            that clients have no models of their own.
    """

    name: str
    weighting: Weighting = "samples"
    evaluate_server: bool = True
    server_state: Callable[[Tree], Tree] = _initial
    client_state: Callable[[Tree], Tree] = _stateless
    broadcast: Callable[[Tree], Tree] = _broadcast
    start: Callable[[Tree, Tree], Tree] = _start
    stages: tuple[LocalStage, ...] = (LocalStage(),)
    optimizer: Callable[[Tree, Tree], Tree] | None = None
    loss: Objective = _task_loss
    separable: bool = True
    correct: Callable[[Tree, Tree, Context], Tree] | None = None
    finish: Callable[[Finished, Context], tuple[Tree, Tree]] = _upload_weights
    origin: Callable[[Tree], Tree] = _broadcast
    server_step: Callable[[Tree, Uploads], Tree] = _take_mean
    personal: Callable[[Tree, Tree], Tree] | None = None

    @property
    def stateful(self) -> bool:
        """Whether clients keep a state between rounds."""
        return self.client_state is not _stateless

    def weight(self, num_examples: int) -> float:
        """Weight of an upload in the mean."""
        return float(num_examples) if self.weighting == "samples" else 1.0


def inner_functions(algorithm: Algorithm) -> dict[str, Any]:
    """Fields for a wrapper that keeps the algorithm's client state as `inner` of its own.

    Returns:
        `loss` and `correct` that read the algorithm's own state in `ctx.client`.
    """
    correct = algorithm.correct

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        return algorithm.loss(task, params, batch, inner_context(ctx))

    def inner_correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        assert correct is not None
        return correct(grads, params, inner_context(ctx))

    return {"loss": loss, "correct": correct and inner_correct}


def inner_context(ctx: Context) -> Context:
    """The context as a wrapped algorithm knows it."""
    return ctx._replace(client=ctx.client["inner"])


def joint_leaves(algorithm: Algorithm, weights: Tree) -> Tree:
    """What local training changes beside the model, as a new client starts it.

    Args:
        algorithm: says so in `start`.
        weights: of the model.

    Returns:
        `{"params": ..., "buffers": ...}`, empty for most algorithms.
    """
    broadcast = algorithm.broadcast(algorithm.server_state(weights))
    start = algorithm.start(broadcast, algorithm.client_state(broadcast))
    return {
        kind: {name: leaf for name, leaf in start[kind].items() if name not in weights[kind]}
        for kind in ("params", "buffers")
    }
