"""Local training of a stack of clients, by programs that step all of them at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flfast.algorithms.algorithm import Context
from flfast.datamodules.federated import ClientDataModule
from flfast.engines.fused.agreement import agree, perturbations
from flfast.engines.fused.graph.trace import like
from flfast.engines.fused.run.example_rows import ROWS
from flfast.engines.fused.run.one_client import ClientProgram
from flfast.engines.fused.run.stack_schedule import LocalSteps, StackCall, local_steps, stack_calls
from flfast.engines.fused.run.stack_width import auto_width
from flfast.engines.fused.run.training_state import LocalOutcome, TrainingState, readable
from flfast.engines.local_training import ClientStart
from flfast.plan import RoundPlan
from flfast.state.transfer import to_device
from flfast.state.tree import Tree, tree_map

READY_EXAMPLES = {"cpu": 512, "cuda": 8192}
"""Rows made ready at once, by one gather: few enough for a core's cache, many for a GPU."""


class StackProgram:
    """Trains clients together, in work tensors that have a client axis in front.

    Args:
        client: trains one of them.
        widths: that were found, by largest batch and batching; new ones are added.
    """

    def __init__(self, client: ClientProgram, widths: dict[str, int]) -> None:
        self._client = client
        self._work = TrainingState(client.steps, 1)
        self._widths = widths

    def width(
        self, asked: int | Literal["auto"], begin: Callable[[], ClientStart], plan: RoundPlan
    ) -> int:
        """How many clients to train together.

        Args:
            asked: so many, or `auto`: as many as are faster and give the numbers of one.
            begin: the beginning of a client with the largest batches.
            plan: epochs or steps, learning rate.
        """
        if asked != "auto":
            return asked
        own = begin()
        few = plan._replace(local_steps=2, local_epochs=None)
        (largest, *_) = _steps([own], few)[0].sizes
        key = f"{largest} {tuple(plan.batching)}"
        if key not in self._widths:
            found = self._auto_width(own, int(largest), plan.round_idx)
            if found > 1 and not self._agrees(begin, few):
                found = 1
            self._widths[key] = found
        return self._widths[key]

    def _auto_width(self, own: ClientStart, num_examples: int, round_idx: int) -> int:
        with torch.inference_mode():
            (context,) = self._client.contexts.copied([own.context], round_idx)
            settings = self._client.settings(context)
            rows = self._client.rows.ready(own.data.indices[:1].repeat(num_examples), own.data)
            batch = self._client.batch(num_examples)
        widths = []
        for stage, programs in enumerate(self._client.programs):
            trees = [self._work.slot(0, stage), readable(context), settings, batch]
            step = programs.operators("whole", trees, dict(zip(ROWS, rows, strict=True)))
            model = self._client.steps[stage].model
            widths.append(auto_width(step, model, num_examples=num_examples))
        return min(widths)

    def _agrees(self, begin: Callable[[], ClientStart], plan: RoundPlan) -> bool:
        """Whether two of the same client arrive where it does alone."""
        plans = [plan] * len(self._client.steps)
        expected = self._client.train(begin(), plans).done.weights
        try:
            both = [outcome.done.weights for outcome in self.train([begin(), begin()], plans)]
        except (RuntimeError, NotImplementedError):  # no operators for a stack
            return False
        start = begin().context.start
        nearby = [
            self._client.train(_started_from(begin(), perturbed), plans).done.weights
            for perturbed in perturbations(start, plan.precision)
        ]
        return all(agree(found, expected, start=start, nearby=nearby) for found in both)

    def train(
        self, stack: Sequence[ClientStart], plans: Sequence[RoundPlan]
    ) -> Iterator[LocalOutcome]:
        """Local training of clients in the order of their number of steps, most first.

        Args:
            stack: where each begins; all of one round.
            plans: of every stage, with its epochs or steps.

        Yields:
            What local training left of each, in their order.

        Raises:
            RuntimeError: if the step cannot be taken by a stack.
            NotImplementedError: likewise.
        """
        stages = [_steps(stack, plan) for plan in plans]
        round_idx = plans[0].round_idx
        with torch.inference_mode():
            contexts = self._client.contexts.copied([own.context for own in stack], round_idx)
            if self._work.width < len(stack):
                self._work = TrainingState(self._client.steps, len(stack))
            for place, own in enumerate(stack):
                self._work.load(place, own)
            for stage, steps in enumerate(stages):
                self._run(stage, [own.data for own in stack], contexts, steps)
            reached = self._work.reached(len(stack))
        everyones = zip(*stages, strict=True)
        for own, context, wanted, arrived in zip(stack, contexts, everyones, reached, strict=True):
            seen = [int(steps.sizes.sum()) for steps in wanted]
            of_an_epoch = min(len(own.data.indices), wanted[0].epoch)
            with torch.inference_mode():
                outcome = self._work.outcome(
                    arrived,
                    context,
                    num_seen=sum(seen),
                    num_examples=min(max(seen), of_an_epoch),
                    num_steps=sum(len(steps.sizes) for steps in wanted),
                )
            yield outcome

    def _run(
        self,
        stage: int,
        data: list[ClientDataModule],
        contexts: list[Context],
        steps: list[LocalSteps],
    ) -> None:
        exact = self._client.is_exact(stage, data[0], contexts[0])
        examples = _Examples(data, steps)
        settings = self._client.settings(contexts[0])
        alone = [self._work.slot(0, stage), readable(contexts[0]), settings, self._batch]
        together = _together(contexts)
        sizes = [own.sizes for own in steps]
        for call in stack_calls(sizes, data[0].batching, exact=exact):
            members = slice(call.first, call.first + call.width)
            if call.width == 1:
                state = self._work.slot(call.first, stage)
                context = readable(contexts[call.first])
            else:
                state = self._work.slots(call.first, call.width, stage)
                context = _members(together, alone[1], members)
            trees = [state, context, settings, self._batch]
            bound = self._client.programs[stage].bind(
                "whole", trees, alone=None if call.width == 1 else alone
            )
            for rows in self._rows(call, examples):
                if call.width == 1:
                    rows = tree_map(lambda row: row.squeeze(1), rows)
                bound(rows, num=len(rows["num"]))

    @property
    def _batch(self) -> Tree:
        return {"share": torch.ones_like(self._work.state["loss"][0])}

    def _rows(self, call: StackCall, examples: "_Examples") -> Iterator[Tree]:
        """Rows of a call's steps, [T, S, B, ...], some of them at a time."""
        numbers, sizes = examples.of(call)
        data = examples.data[call.first : call.first + call.width]
        loss = self._work.state["loss"]
        ready = READY_EXAMPLES.get(loss.device.type, READY_EXAMPLES["cpu"])
        at_once = max(ready // (call.width * call.size), 1)
        for start in range(0, call.num, at_once):
            part = slice(start, start + at_once)
            real = np.arange(call.size) < sizes[part, :, None]
            inputs, targets = self._client.rows.ready_together(numbers[part], real, data)
            num = to_device(sizes[part], loss.device).to(loss.dtype)
            weights = to_device(real, loss.device).to(loss.dtype) / num.unsqueeze(-1)
            yield {"weights": weights, "num": num, "inputs": inputs, "targets": targets}


def _started_from(start: ClientStart, weights: Tree) -> ClientStart:
    return start._replace(context=start.context._replace(start=weights))


def _steps(stack: Sequence[ClientStart], plan: RoundPlan) -> list[LocalSteps]:
    return [
        local_steps(
            len(own.data.indices),
            own.data.batching,
            epochs=plan.local_epochs,
            steps=plan.local_steps,
        )
        for own in stack
    ]


class _Examples:
    """Numbers of examples in the order of every client's steps.

    Attributes:
        data: of the clients.
    """

    def __init__(self, data: list[ClientDataModule], steps: list[LocalSteps]) -> None:
        self.data, self._steps = data, steps
        self._orders = [_order(own, wanted) for own, wanted in zip(data, steps, strict=True)]
        self._ends = [np.cumsum(wanted.sizes) for wanted in steps]

    def of(self, call: StackCall) -> tuple[np.ndarray, np.ndarray]:
        """A call's numbers, [T, S, B] with any in place of padding, and its batches' sizes."""
        steps = slice(call.step, call.step + call.num)
        members = range(call.first, call.first + call.width)
        sizes = np.stack([self._steps[place].sizes[steps] for place in members], axis=1)
        real = np.arange(call.size) < sizes[:, :, None]
        numbers = np.zeros(real.shape, dtype=np.int64)
        for column, place in enumerate(members):
            stop = int(self._ends[place][call.step + call.num - 1])
            own = self._orders[place][stop - int(sizes[:, column].sum()) : stop]
            numbers[:, column] = own[0]
            numbers[:, column][real[:, column]] = own
        return numbers, sizes


def _order(data: ClientDataModule, steps: LocalSteps) -> np.ndarray:
    """Numbers of a client's examples as its steps read them, epoch after epoch."""
    left, parts = int(steps.sizes.sum()), []
    while left:
        parts.append(data.next_order()[: min(left, steps.epoch)])
        left -= len(parts[-1])
    return np.concatenate(parts)


def _together(contexts: list[Context]) -> Tree:
    """Contexts as one: leaves that differ have a client axis in front, [S, ...]."""

    def join(*own: Tensor) -> Tensor:
        if all(leaf is own[0] for leaf in own):
            return own[0]
        return like(own[0], len(own)).copy_(torch.stack(own))

    first, *others = (readable(context) for context in contexts)
    return tree_map(join, first, *others)


def _members(together: Tree, alone: Tree, members: slice) -> Tree:
    def narrowed(leaf: Tensor, one: Tensor) -> Tensor:
        return leaf if leaf.ndim == one.ndim else leaf[members]

    return tree_map(narrowed, together, alone)
