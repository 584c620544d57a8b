"""What the functions of a client see during local training, and what they return."""

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from flfast.datamodules.batches import Batch
from flfast.state.tree import Tree, sub

Fact = Literal["examples", "labels", "round", "public"]


class Task(Protocol):
    """The model and its loss, as the local objective sees them.

    Every method takes weights by name: those of local training or any others. Names that the
    model lacks are ignored. Buffers that are not given are those of local training.
    """

    def __call__(self, params: Tree, batch: Batch) -> Tensor:
        """Mean loss [] over a batch, or over part of one."""

    def mean(self, values: Tensor) -> Tensor:
        """Mean [] of per-example values [B]; padded examples have weight zero."""

    def losses(self, weights: Tree, batch: Batch) -> Tensor:
        """Mean loss of each example [B]."""

    def logits(self, weights: Tree, batch: Batch) -> Tensor:
        """Outputs of the model, [B, C] for all tasks but `language`."""

    def fixed_logits(self, weights: Tree, batch: Batch) -> Tensor:
        """Outputs of the model in evaluation mode, without gradient."""

    def features(self, weights: Tree, batch: Batch, *, layer: str) -> tuple[Tensor, Tensor]:
        """Inputs of a layer [B, D], and the mean loss []."""

    def fixed_features(self, weights: Tree, batch: Batch, *, layer: str) -> Tensor:
        """Inputs of a layer [B, D] in evaluation mode, without gradient."""


class Context(NamedTuple):
    """What the functions of a client may read during local training.

    Attributes:
        server: the broadcast.
        client: the client's state.
        start: the weights that local training started from.
        lr: local learning rate of the stage, a tensor [] of float64; in `finish`, of the round.
        generator: purpose -> a CPU generator of this round and client. A function that draws
            random numbers takes them from it, so that every engine draws the same.
        facts: those that `Algorithm.facts` names. They stay with the client, unless `finish`
            uploads them.
        measured: sums of the measures so far, by name.
    """

    server: Tree
    client: Tree
    start: Tree
    lr: Tensor
    generator: Callable[[str], torch.Generator]
    facts: Tree = {}  # noqa: RUF012 - never changed
    measured: Tree = {}  # noqa: RUF012 - never changed

    @property
    def trees(self) -> Tree:
        """All tensors but the learning rate, by attribute."""
        names = ("server", "client", "start", "facts", "measured")
        return {name: getattr(self, name) for name in names}

    def map(self, fn: Callable[[Tree], Tree]) -> "Context":
        """The context with `fn` of each of its trees, such as copies on another device."""
        trees: dict[str, Any] = {name: fn(tree) for name, tree in self.trees.items()}
        return self._replace(**trees)

    def change(self, weights: Tree) -> Tree:
        """`weights - start` in the data types of the weights, which may be a part of all."""
        return _change(weights, self.start)


def _change(end: Tree, start: Tree) -> Tree:
    result = Tree()
    for name, leaf in end.items():
        if isinstance(leaf, dict):
            result[name] = _change(leaf, start[name])
        else:
            is_bool = leaf.dtype == torch.bool
            change = sub({name: leaf}, start)[name] if is_bool else leaf - start[name]
            same = is_bool or change.dtype == leaf.dtype
            result[name] = change if same else change.to(leaf.dtype)
    return result


class Finished(NamedTuple):
    """The outcome of a client's local training.

    Attributes:
        weights: final weights, `{"params": ..., "buffers": ...}`.
        num_examples: distinct training examples used.
        num_steps: local steps taken.
        optimizer: state of the local optimizer by parameter name; empty unless
            `KitFunctions.optimizer` is set.
    """

    weights: Tree
    num_examples: int
    num_steps: int
    optimizer: Tree


class Objective(Protocol):
    """Local objective of one batch."""

    def __call__(self, task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        """Loss [], differentiable in params."""


class Gradient(Protocol):
    """Value and gradient of one batch, where the gradient is not that of the value."""

    def __call__(
        self, task: Task, params: Tree, batch: Batch, ctx: Context
    ) -> tuple[Tensor, Tree]:
        """Loss [] to report, and gradients by name; parameters without one stay."""


class LocalStage(NamedTuple):
    """A stage of local training; every stage starts with a fresh optimizer.

    Attributes:
        trains: names of the parameters to train; None is all of them.
        epochs: local epochs; None is the plan's number. If the plan counts local steps instead,
            every stage takes that many.
        share: part of the client's examples that it sees, in (0, 1], drawn anew every round.
        loss: local objective.
        gradient: instead of an objective. Without both, the stage has the algorithm's.
        lr: factor of the local learning rate, > 0.
        begin: (weights, context) -> weights that the stage starts from, joint leaves included.
        optimizer: (parameters, lr=...) -> the stage's optimizer; None is that of the run.
    """

    trains: Collection[str] | None = None
    epochs: int | None = None
    share: float = 1.0
    loss: Objective | None = None
    gradient: Gradient | None = None
    lr: float = 1.0
    begin: Callable[[Tree, Context], Tree] | None = None
    optimizer: Callable[..., Optimizer] | None = None


class KitFunctions(NamedTuple):
    """Functions of an `Algorithm` that its author needs no thought of: the kit sets them.

    Attributes:
        optimizer: (broadcast, client state) -> initial state of the local optimizer by parameter
            name; None starts fresh every round.
        fold: broadcast -> what it changes of the frozen base of `adapter=lora`: for the name of a
            factor A, the sum of products B A [out, in * kernel] that the layer's weight has got.
            None changes nothing.
        place: (upload, broadcast) of a client whose upload is not like those of others -> parts in
            place of those of the upload, alike for all clients: a slice of the model among zeros,
            and a `mask` of where it is; or a member's model among zeros for those of others. It
            acts when the upload has arrived. None leaves uploads as they are.
    """

    optimizer: Callable[[Tree, Tree], Tree] | None = None
    fold: Callable[[Tree], Tree] | None = None
    place: Callable[[Tree, Tree], Tree] | None = None


class Measure(NamedTuple):
    """A pass over a client's training examples between stages, in evaluation mode.

    Attributes:
        name: name of the result in `Context.measured`.
        sums: (task, weights by name, batch, context) -> tensors, each a sum over the examples of
            the batch. They are added up over the client's batches.
        public: whether there is one batch, of all public examples, instead; see
            `Algorithm.facts`.
    """

    name: str
    sums: Callable[[Task, Tree, Batch, Context], Tree]
    public: bool = False
