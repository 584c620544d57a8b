"""What local training reads and changes, as tensors on its device: of one client or a stack."""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor, device

from flfast.algorithms.algorithm import Context, Finished
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.engines.fused.graph.trace import like
from flfast.engines.local_training import ClientStart
from flfast.state.transfer import to_host
from flfast.state.tree import Tree, num_bytes, tree_map
from flfast.state.weights import buffers

SMALLEST_LR = 1e-20
"""Stands for a learning rate of zero: it changes no parameter that is not zero itself."""

HOST_BYTES = 2**28
"""Of clients' states that are copied from a GPU at once."""


class LocalOutcome(NamedTuple):
    """What local training left.

    Attributes:
        done: what it arrived at, on the CPU.
        num_seen: examples processed, every pass counted.
        loss_sum: of the local objective over the examples seen.
    """

    done: Finished
    num_seen: int
    loss_sum: float


class TrainingState:
    """State of local steps of S clients in a row; a slot is one client's.

    Args:
        steps: the local step of every stage, with their model where and in the type that it
            trains in; one stage goes on where the one before it ended.
        width: S.
    """

    def __init__(self, steps: Sequence[LocalStep], width: int) -> None:
        self.steps, self.width = steps, width
        model, joint = steps[0].model, steps[0].joint
        first = next(model.parameters())
        joint = tree_map(partial(_placed, like=first), joint)
        params = {**dict(model.named_parameters()), **joint["params"]}
        self._trained = [{name: params[name] for name in step.trained} for step in steps]
        # Sums over examples are no numbers of 16 bits, whatever the model's are.
        exact = torch.promote_types(first.dtype, torch.float32)
        with torch.inference_mode():
            one: Tree = {
                "params": params,
                "buffers": {**buffers(model), **joint["buffers"]},
                "optimizer": {
                    str(stage): step.optimizer.empty(trained)
                    for stage, (step, trained) in enumerate(zip(steps, self._trained, strict=True))
                },
                "loss": torch.zeros((), dtype=exact, device=first.device),
            }
            self.state = tree_map(self._row, one)
        self._grads: dict[int, Tree] = {}

    def _row(self, leaf: Tensor) -> Tensor:
        # Every slot has the strides of the model's own, channels last included.
        return like(leaf, self.width).copy_(leaf)

    def slot(self, place: int, stage: int, *, grads: bool = False) -> Tree:
        """One client's state in a stage, as views; with `grads` to accumulate in."""
        wanted = self._of(stage)
        if grads:
            if stage not in self._grads:
                zero = tree_map(torch.zeros_like, self._trained[stage])
                self._grads[stage] = tree_map(self._row, zero)
            wanted["grads"] = self._grads[stage]
        return tree_map(lambda leaf: leaf[place], wanted)

    def slots(self, first: int, width: int, stage: int) -> Tree:
        """The states of neighbours in a stage, as views [width, ...]."""
        return tree_map(lambda leaf: leaf[first : first + width], self._of(stage))

    def _of(self, stage: int) -> Tree:
        return {**self.state, "optimizer": self.state["optimizer"][str(stage)]}

    def load(self, place: int, own: ClientStart) -> None:
        """Put a client at its start.

        Args:
            place: of the slot.
            own: the client's beginning.
        """
        for kind in ("params", "buffers"):
            tree_map(
                lambda leaf, start: leaf[place].copy_(start),
                self.state[kind],
                own.context.start[kind],
            )
        for stage, step in enumerate(self.steps):
            optimizer = self.slot(place, stage)["optimizer"]
            step.optimizer.load(optimizer, own.optimizer_state, rate(own.context))
        self.state["loss"][place].zero_()

    def reached(self, num: int) -> Iterator[Tree]:
        """Where the first `num` clients have arrived: their states on the CPU.

        Of a GPU many at a time are copied, and waited for once; on the CPU they are views.
        """
        at_once = max(HOST_BYTES * self.width // num_bytes(self.state), 1)
        for start in range(0, num, at_once):
            stop = min(start + at_once, num)
            with torch.inference_mode():
                found = to_host(tree_map(itemgetter(slice(start, stop)), self.state))
                own = [tree_map(itemgetter(place), found) for place in range(stop - start)]
            yield from own

    def outcome(
        self, reached: Tree, context: Context, *, num_seen: int, num_examples: int, num_steps: int
    ) -> LocalOutcome:
        """What local training left of a client, in copies.

        Args:
            reached: where it has arrived.
            context: what it could read.
            num_seen: examples processed, every pass counted.
            num_examples: distinct ones.
            num_steps: local steps.
        """
        optimizer: Tree = {}
        for stage, step in enumerate(self.steps):
            found = reached["optimizer"][str(stage)]
            optimizer |= step.optimizer.read(found, step.trained, rate(context))
        done = Finished(
            weights={kind: tree_map(_copy, reached[kind]) for kind in ("params", "buffers")},
            num_examples=num_examples,
            num_steps=num_steps,
            optimizer=optimizer,
        )
        return LocalOutcome(done, num_seen, float(reached["loss"]))


def rate(context: Context) -> float:
    """The learning rate of local steps: a state kept in multiples of it can be read back."""
    return max(float(context.lr), SMALLEST_LR)


def _placed(leaf: Tensor, *, like: Tensor) -> Tensor:
    return leaf.to(like if leaf.is_floating_point() else like.device)


def _copy(leaf: Tensor) -> Tensor:
    return leaf.clone(memory_format=torch.contiguous_format)


class Contexts:
    """Copies contexts to a device; what clients of a round share is copied once.

    Args:
        device: where to.
    """

    def __init__(self, device: device) -> None:
        self._device, self._round_idx = device, -1
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def copied(self, contexts: Sequence[Context], round_idx: int) -> list[Context]:
        """Contexts on the device, where those that were one tensor still are.

        Args:
            contexts: anywhere.
            round_idx: theirs; within a round no tensor of a context changes.
        """
        known = self._copies if round_idx == self._round_idx else {}
        # With its origin, so that no other tensor gets its number; and none longer than needed.
        self._copies, self._round_idx = {}, round_idx

        def copy(leaf: Tensor) -> Tensor:
            if id(leaf) not in self._copies:
                found = known.get(id(leaf)) or (leaf, leaf.to(self._device))
                self._copies[id(leaf)] = found
            return self._copies[id(leaf)][1]

        return [
            context._replace(
                server=tree_map(copy, context.server),
                client=tree_map(copy, context.client),
                start=tree_map(copy, context.start),
            )
            for context in contexts
        ]


def readable(context: Context) -> Tree:
    """A context as steps read it."""
    return {"server": context.server, "client": context.client, "start": context.start}
