"""The contract: an algorithm is a handful of pure functions, written for one client.

Every field of `Algorithm` defaults to FedAvg, so a file states only what differs. The functions
know nothing of devices, loggers, configs, or how many clients run at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from torch import Tensor

from flfast.algorithms.contract.client import (
    Context,
    Fact,
    Finished,
    Gradient,
    KitFunctions,
    LocalStage,
    Measure,
    Objective,
    Task,
)
from flfast.algorithms.contract.records import Record, Records
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.datamodules.batches import Batch
from flfast.state.tree import Tree, add
from flfast.state.weights import model_weights
from flfast.tasks.names import TaskName

Weighting = Literal["samples", "uniform"]


class Round(Protocol):
    """A round, as an algorithm sees it: `Calls` in `federation/calls.py`."""

    @property
    def number(self) -> int:
        """From 1."""

    @property
    def clients(self) -> Sequence[int]:
        """Ids of the cohort."""

    def call(
        self,
        server: Tree,
        local: "Algorithm | None" = None,
        *,
        clients: Sequence[int] | None = None,
    ) -> Uploads:
        """Broadcast to clients, let them train or measure, and combine the uploads.

        Args:
            server: what `local.broadcast` and `local.send` read.
            local: what the clients do: the algorithm itself, or one of `Algorithm.calls`.
            clients: a part of the cohort; None is all of it.
        """

    def on_server(
        self,
        server: Tree,
        local: "ServerCall",
        *,
        steps: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        member: int = 0,
    ) -> Tree:
        """Train or measure on the server's own examples, as one more client; returns its upload.

        The upload is not transmitted: it is neither attacked nor clipped, and counts no bytes.

        Args:
            server: what `local.broadcast` and `local.send` read.
            local: what is done, one of `Algorithm.calls`.
            steps: local steps; None is as many epochs or steps as the clients take.
            lr: learning rate; None is that of the clients.
            batch_size: examples per step, -1 for all; None is that of the clients.
            member: place of the member of `model=family` whose model it is.
        """


def _initial(weights: Tree) -> Tree:
    return weights


def _stateless(server: Tree) -> Tree:
    return {}


def _start(broadcast: Tree, client: Tree) -> Tree:
    return model_weights(broadcast)


def _task_loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
    return task(params, batch)


def _upload_change(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
    return ctx.change(done.weights), ctx.client


def _add_mean(server: Tree, uploads: Uploads) -> Tree:
    return add(server, uploads.mean)


@dataclass(frozen=True)
class Algorithm:
    """What the server and the clients compute. States, broadcasts and uploads are trees.

    Attributes:
        name: for titles and messages.
        tasks: that it works for. One that computes with classes is for `classification`.
        weighting: weights of the mean of uploads: training examples used, or 1; or a function
            (`Finished`, context) -> another weight, >= 0.
        evaluate_server: whether the server has a complete model, to evaluate and to save.
        server_state: initial weights -> server state, with `params` and `buffers`, and with every
            other key that a call broadcasts: engines try a local step with it before round 1.
        client_state: broadcast -> state of a client in its first round. Clients keep states
            between rounds if an algorithm has this function.
        broadcast: server state -> what every client of the cohort receives.
        send: (server state, `Records`, ids of K clients) -> what each of them receives beside the
            broadcast, each leaf [K, ...]. All functions of clients get both as their broadcast.
            The clients are the cohort. For `personal` they are any, and no row may depend on the
            other clients.
        record: what the server keeps of each client that uploaded; some part must have the rule
            `rows`. None keeps nothing.
        start: (broadcast, client state) -> initial weights of local training. They may have
            leaves that the model lacks: the local optimizer trains such parameters, and `loss`
            may change such buffers in place.
        facts: what the functions read in `Context.facts`, as float64: `examples`, their number
            []; `labels`, how many the client has of each class [C]; `round` []. And `public`, the
            server's examples, which all clients know, as the model reads them: `inputs` [P, ...]
            and `targets` [P].
        stages: stages of local training and measures, in order, each over the client's examples.
        loss: local objective. It gets all parameters, and the buffers that the model lacks.
        gradient: instead of an objective: what each local step gets. Batches are never split.
        separable: whether the objective is a mean over examples. Only then may the batch of a
            local step be padded, accumulated, or be split into micro-batches or over devices,
            whose gradients are summed.
        correct: (gradients, params, context) -> gradients for the optimizer; None is the identity.
        finish: (`Finished`, context) -> (upload, new client state). An upload is a change, so a
            client that learned nothing uploads zeros, and no step of the channel knows what it
            is added to. By default it is `Context.change` of the final weights.
        parts: parts of the upload, by top-level key. Others are learned and averaged; `params` and
            `buffers` among them are changes of what was broadcast under the same name.
        server_step: (server state, `Uploads`) -> new server state; by default the state plus the
            mean of the uploads.
        round: (server state, `Round`) -> new server state; None is one call and `server_step`.
        calls: what else `round` calls the cohort for, or does on the server (`ServerCall`). Only
            the fields up to `parts` count, except `record`. One with the `client_state` of the
            algorithm reads and writes its clients' states; one without gets an empty state.
        personal: (broadcast, client state) -> weights to evaluate the client with; None: clients
            have no personal models.
        predict: (task, weights by name, batch) -> logits [B, C] of a client's own model, in
            evaluation mode; None is the model's forward. `personal` may then give leaves that the
            model lacks.
        kit: what wrappers and families of algorithms set; see `KitFunctions`.
    """

    name: str
    tasks: tuple[TaskName, ...] = get_args(TaskName)
    weighting: Weighting | Callable[[Finished, Context], float] = "samples"
    evaluate_server: bool = True
    server_state: Callable[[Tree], Tree] = _initial
    client_state: Callable[[Tree], Tree] = _stateless
    broadcast: Callable[[Tree], Tree] = model_weights
    send: Callable[[Tree, Records, Sequence[int]], Tree] | None = None
    record: Record | None = None
    start: Callable[[Tree, Tree], Tree] = _start
    facts: tuple[Fact, ...] = ()
    stages: tuple[LocalStage | Measure, ...] = (LocalStage(),)
    loss: Objective = _task_loss
    gradient: Gradient | None = None
    separable: bool = True
    correct: Callable[[Tree, Tree, Context], Tree] | None = None
    finish: Callable[[Finished, Context], tuple[Tree, Tree]] = _upload_change
    parts: Mapping[str, Part] = field(default_factory=dict)
    server_step: Callable[[Tree, Uploads], Tree] = _add_mean
    round: Callable[[Tree, Round], Tree] | None = None
    calls: tuple["Algorithm", ...] = ()
    personal: Callable[[Tree, Tree], Tree] | None = None
    predict: Callable[[Task, Tree, Batch], Tensor] | None = None
    kit: KitFunctions = field(default_factory=KitFunctions)

    def __post_init__(self) -> None:
        names = [call.name for call in (self, *self.calls)]
        if len({*names}) < len(names):
            raise ValueError(f"algorithm={self.name}: calls of one name: {', '.join(names)}")
        for call in self.server_calls:
            if call.stateful:
                raise ValueError(
                    f"algorithm={self.name}: {call.name} has a client_state, and the server keeps "
                    f"none; keep it in the server state"
                )

    def works_for(self, task: TaskName) -> bool:
        """Whether it can learn a task.

        Label counts exist for `classification` only. Batches of a module may be no tensors, so
        there is no tensor of all public examples.
        """
        lacking = {"labels"} if task != "classification" else set()
        lacking |= {"public"} if task == "module" else set()
        return task in self.tasks and not lacking.intersection(self.facts)

    @property
    def stateful(self) -> bool:
        """Whether clients keep a state between rounds."""
        return self.client_state is not _stateless

    @property
    def uploads_changes(self) -> bool:
        """Whether uploads are `Context.change` of the final weights, and weigh by their counts."""
        return self.finish is _upload_change and not (self.has_own_weights or self.kit.place)

    @property
    def slices(self) -> bool:
        """Whether clients have parts of one model."""
        return self.kit.place is not None and "mask" in self.parts

    @property
    def cohort_calls(self) -> tuple["Algorithm", ...]:
        """The calls of the cohort."""
        return tuple(call for call in self.calls if not isinstance(call, ServerCall))

    @property
    def server_calls(self) -> tuple["ServerCall", ...]:
        """The calls on the server's own examples."""
        return tuple(call for call in self.calls if isinstance(call, ServerCall))

    def one_round(self, server: Tree, rnd: Round) -> Tree:
        """The server state after a round."""
        if self.round is not None:
            return self.round(server, rnd)
        return self.server_step(server, rnd.call(server))

    @property
    def training_stages(self) -> list[LocalStage]:
        """The stages without the measures."""
        return [stage for stage in self.stages if isinstance(stage, LocalStage)]

    @property
    def splits_batches(self) -> bool:
        """Whether a local step may add up gradients: of batches, micro-batches or devices."""
        own_gradients = any(self.objective(stage)[1] for stage in self.training_stages)
        return self.separable and not own_gradients

    def objective(self, stage: LocalStage) -> tuple[Objective, Gradient | None]:
        """The objective of a stage, and the gradient to use instead, if there is one."""
        if stage.loss is None and stage.gradient is None:
            return self.loss, self.gradient
        return stage.loss or self.loss, stage.gradient

    @property
    def has_own_weights(self) -> bool:
        """Whether clients compute the weights of their uploads."""
        return callable(self.weighting)

    @property
    def weighs_equally(self) -> bool:
        """Whether all uploads weigh the same."""
        return self.weighting == "uniform"

    def weight_of(self, done: Finished, ctx: Context) -> float:
        """Weight of an upload in the mean."""
        if callable(self.weighting):
            return self.weighting(done, ctx)
        return float(done.num_examples) if self.weighting == "samples" else 1.0

    @property
    def counted(self) -> frozenset[str]:
        """Names of the parts that are not learned."""
        return frozenset(name for name, part in self.parts.items() if not part.learned)

    @property
    def undiscounted(self) -> frozenset[str]:
        """Names of the parts that staleness does not discount."""
        return frozenset(name for name, part in self.parts.items() if part.stale == "keep")


@dataclass(frozen=True)
class ServerCall(Algorithm):
    """What a round does on the server's own examples, of which the run must have some."""
