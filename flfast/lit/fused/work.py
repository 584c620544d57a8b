"""The tensors that local training changes: of one client, or of a stack of them."""

from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.algorithms.algorithm import Context, Finished
from flfast.datamodules.federated import ClientDataModule
from flfast.lit.fused.step import LocalStep
from flfast.lit.fused.trace import like
from flfast.state.transfer import to_host
from flfast.state.tree import Tree, num_bytes, tree_map
from flfast.state.weights import buffers

SMALLEST_LR = 1e-20
"""Stands for a learning rate of zero: it changes no parameter that is not zero itself."""

HOST_BYTES = 2**28
"""Of clients' states that are copied from a GPU at once."""


class Beginning(NamedTuple):
    """What a client starts from.

    Attributes:
        context: what it may read.
        weights: where it starts, which is `context.start` in the first phase.
        optimizer_state: by parameter name; empty for a fresh optimizer.
        data: the client's.
    """

    context: Context
    weights: Tree
    optimizer_state: Tree
    data: ClientDataModule


class Outcome(NamedTuple):
    """What local training left.

    Attributes:
        done: what it arrived at, on the CPU.
        num_seen: examples processed, every pass counted.
        loss_sum: of the local objective over the examples seen.
    """

    done: Finished
    num_seen: int
    loss_sum: float


def added(before: Outcome, after: Outcome) -> Outcome:
    """What two phases of local training left, one after the other."""
    first, last = before.done, after.done
    done = Finished(
        weights=last.weights,
        num_examples=max(first.num_examples, last.num_examples),
        num_steps=first.num_steps + last.num_steps,
        optimizer={**first.optimizer, **last.optimizer},
    )
    return Outcome(done, before.num_seen + after.num_seen, before.loss_sum + after.loss_sum)


class Work:
    """State of local steps of S clients in a row; a slot is one client's.

    Args:
        step: the local step, with its model where and in the type that it trains in.
        width: S.
    """

    def __init__(self, step: LocalStep, width: int) -> None:
        self.step, self.width = step, width
        first = next(step.model.parameters())
        joint = tree_map(partial(_placed, like=first), step.joint)
        params = {**dict(step.model.named_parameters()), **joint["params"]}
        trained = {name: params[name] for name in step.trained}
        # Sums over examples are no numbers of 16 bits, whatever the model's are.
        exact = torch.promote_types(first.dtype, torch.float32)
        with torch.inference_mode():
            one: Tree = {
                "params": params,
                "buffers": {**buffers(step.model), **joint["buffers"]},
                "optimizer": step.optimizer.empty(trained),
                "loss": torch.zeros((), dtype=exact, device=first.device),
            }
            self.state = tree_map(self._row, one)
            self._grads = trained

    def _row(self, leaf: Tensor) -> Tensor:
        # Every slot has the strides of the model's own, channels last included.
        return like(leaf, self.width).copy_(leaf)

    def slot(self, place: int, *, grads: bool = False) -> Tree:
        """One client's state, as views; with `grads` to accumulate in."""
        if grads and "grads" not in self.state:
            self.state["grads"] = tree_map(lambda p: self._row(torch.zeros_like(p)), self._grads)
        wanted = {k: v for k, v in self.state.items() if grads or k != "grads"}
        return tree_map(lambda leaf: leaf[place], wanted)

    def slots(self, first: int, width: int) -> Tree:
        """The states of neighbours, as views [width, ...]."""
        return tree_map(lambda leaf: leaf[first : first + width], self.state)

    def load(self, place: int, own: Beginning) -> None:
        """Put a client at its start.

        Args:
            place: of the slot.
            own: the client's beginning.
        """
        state = self.slot(place)
        for kind in ("params", "buffers"):
            tree_map(torch.Tensor.copy_, state[kind], own.weights[kind])
        self.step.optimizer.load(state["optimizer"], own.optimizer_state, rate(own.context))
        state["loss"].zero_()

    def reached(self, num: int) -> Iterator[Tree]:
        """Where the first `num` clients have arrived: their states on the CPU.

        Of a GPU many at a time are copied, and waited for once; on the CPU they are views.
        """
        state = {kind: tree for kind, tree in self.state.items() if kind != "grads"}
        at_once = max(HOST_BYTES * self.width // num_bytes(state), 1)
        for start in range(0, num, at_once):
            stop = min(start + at_once, num)
            with torch.inference_mode():
                found = to_host(tree_map(itemgetter(slice(start, stop)), state))
                own = [tree_map(itemgetter(place), found) for place in range(stop - start)]
            yield from own

    def outcome(
        self, reached: Tree, context: Context, *, num_seen: int, num_examples: int, num_steps: int
    ) -> Outcome:
        """What local training left of a client, in copies.

        Args:
            reached: where it has arrived.
            context: what it could read.
            num_seen: examples processed, every pass counted.
            num_examples: distinct ones.
            num_steps: local steps.
        """
        optimizer = self.step.optimizer
        done = Finished(
            weights={kind: tree_map(_copy, reached[kind]) for kind in ("params", "buffers")},
            num_examples=num_examples,
            num_steps=num_steps,
            optimizer=optimizer.read(reached["optimizer"], self.step.trained, rate(context)),
        )
        return Outcome(done, num_seen, float(reached["loss"]))


def rate(context: Context) -> float:
    """The learning rate of local steps: a state kept in multiples of it can be read back."""
    return max(context.lr, SMALLEST_LR)


def _placed(leaf: Tensor, *, like: Tensor) -> Tensor:
    return leaf.to(like if leaf.is_floating_point() else like.device)


def _copy(leaf: Tensor) -> Tensor:
    return leaf.clone(memory_format=torch.contiguous_format)
