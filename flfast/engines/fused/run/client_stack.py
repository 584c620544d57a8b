"""Trains a stack of clients: each run of a program takes one local step of all of them.

`engines/fused/training.py` uses it, as `StackProgram`, beside `ClientProgram` (`one_client.py`):

1. `stack_choice.StackProgram` chooses how many clients train together.
2. `stack_schedule.py` groups clients of similar length into stacks before training.
3. `train` loads the clients into one training state, whose leaves have a client axis in front.
4. `stack_schedule.stack_spans` and `example_rows.py` give the spans and their rows.
5. `graph/programs.py` runs the spans with the step that `graph/vmapped.py` made for stacks.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch

from flfast.algorithms.contract import Context
from flfast.datamodules.client_data import ClientDataModule
from flfast.engines.fused.graph.programs import BoundStep
from flfast.engines.fused.graph.trace import like
from flfast.engines.fused.run.one_client import ClientProgram
from flfast.engines.fused.run.stack_schedule import (
    LocalSteps,
    StackOrder,
    StackSpan,
    local_steps,
    read_groups,
    stack_spans,
)
from flfast.engines.fused.run.stack_trial import StackForm
from flfast.engines.fused.run.training_state import TrainingState, bare_result
from flfast.engines.local_training import TrainedStack
from flfast.engines.site import ClientStart
from flfast.state.plan import RoundPlan
from flfast.state.precision import to_device
from flfast.state.tree import Tree, joined, tree_map


class ClientStack:
    """Trains clients together, in tensors whose first axis is the client.

    Attributes:
        client: trains single ones.
        form: how stacks train on a GPU.
    """

    def __init__(self, client: ClientProgram) -> None:
        self.client, self.form = client, StackForm()
        self._state = client.state  # until a stack is wider

    def train(
        self, stack: Sequence[ClientStart], plans: Sequence[Sequence[RoundPlan]]
    ) -> Iterator[TrainedStack]:
        """Local training of a stack of clients.

        Args:
            stack: where each client starts, those with the most steps first; all of one learning
                rate and with equal leaves; see `stack_schedule`.
            plans: plans of each client, those of every stage, with its epochs or steps.

        Yields:
            What the clients trained to, in the order of the stack: all at once on a CPU.

        Raises:
            RuntimeError: if vmap does not know an operator of the step.
            NotImplementedError: if the step depends on the number of clients.
        """
        stack[-1].seed_torch()  # clients of a stack draw together
        parts = [
            [start.data.subset(step.stage.share, stage) for start in stack]
            for stage, step in enumerate(self.client.steps)
        ]
        stages = [*map(steps_of, parts, zip(*plans, strict=True))]
        seen = np.zeros(len(stack), dtype=np.int64)
        with torch.inference_mode():
            contexts = self._load(stack, plans[0][0].round_idx)
            for stage, (data, steps) in enumerate(zip(parts, stages, strict=True)):
                contexts = self._reach(stage, stack, contexts)
                seen += self._run(stage, data, contexts, steps)
            contexts = self._reach(len(stages), stack, contexts)
        by_client = zip(zip(*stages, strict=True), zip(*parts, strict=True), strict=True)
        bare = [
            bare_result(
                start,
                context.measured,
                num_seen=num_seen,
                num_examples=max(map(_num_examples, steps, data)),
                num_steps=sum(len(each.sizes) for each in steps),
            )
            for start, context, num_seen, (steps, data) in zip(
                stack, contexts, seen.tolist(), by_client, strict=True
            )
        ]
        pairs = zip(stack, contexts, strict=True)
        yield from self._state.trained(bare, [s._replace(context=c) for s, c in pairs])

    def _load(self, stack: Sequence[ClientStart], round_idx: int) -> list[Context]:
        """Write the clients' starts into the training state; returns contexts on its device."""
        contexts = self.client.contexts.on_device([start.context for start in stack], round_idx)
        if self._state.width < len(stack):
            self._state = TrainingState(self.client.steps, len(stack))
        pairs = zip(stack, contexts, strict=True)
        self._state.load([start._replace(context=context) for start, context in pairs])
        return contexts

    def _reach(
        self, stage: int, stack: Sequence[ClientStart], contexts: list[Context]
    ) -> list[Context]:
        """The clients' contexts as they reach a stage; see `ClientProgram.reach_stage`."""
        ids = (start.data.client_id for start in stack)
        return [
            self.client.reach_stage(self._state, place, stage, client_id, context)
            for place, (client_id, context) in enumerate(zip(ids, contexts, strict=True))
        ]

    def _run(
        self,
        stage: int,
        data: list[ClientDataModule],
        contexts: list[Context],
        steps: list[LocalSteps],
    ) -> np.ndarray:
        """Take all local steps of a stage; returns what each client has seen, int64 [S]."""
        exact = self.client.is_exact(stage, data[0], contexts[0])
        order = StackOrder(data, steps)
        settings = self.client.settings(stage, contexts[0])
        single = [self._state.slot(0, stage), contexts[0].trees, settings, self._batch]
        together: Tree = joined(
            *(context.trees for context in contexts),
            stack=lambda clients: like(clients[0], len(clients)).copy_(torch.stack(clients)),
        )
        programs = self.client.programs[stage]

        @cache  # the same clients take many spans if batches keep their sizes
        def bound(place: int, width: int) -> BoundStep:
            if width == 1:
                state, context = self._state.slot(place, stage), contexts[place].trees
            else:
                state = self._state.slots(place, width, stage)
                context = _narrow_context(together, single[1], slice(place, place + width))
            trees = [state, context, settings, self._batch]
            alone = width == 1
            of_one, unfold = None if alone else single, self.form.unfold and not alone
            return BoundStep(programs, "whole", trees, single=of_one, unfold=unfold)

        spans = stack_spans(order.sizes, data[0].batching, exact=exact)
        # Each read of augmented examples draws from the generators of its clients.
        alone = data[0].data.examples.transform.augments
        for group in read_groups(spans, self.client.reader.at_once, together=not alone):
            for span, rows in zip(group, self._rows(group, order), strict=True):
                if span.width == 1:
                    rows = tree_map(lambda row: row.squeeze(1), rows)
                bound(span.place, span.width)(rows, num=span.num)
        return order.seen

    @property
    def _batch(self) -> Tree:
        return {"share": torch.ones_like(self._state.state["loss"][0])}

    def _rows(self, spans: Sequence[StackSpan], order: StackOrder) -> Iterator[Tree]:
        """The rows of each span's steps, [T, S, B, ...], which one gather reads."""
        loss, reader = self._state.state["loss"], self.client.reader
        indices, sizes = zip(*map(order.indices, spans), strict=True)
        counts = [
            np.broadcast_to(of[:, :, None], at.shape)
            for of, at in zip(sizes, indices, strict=True)
        ]
        real = [np.arange(span.size) < of for span, of in zip(spans, counts, strict=True)]
        if len(spans) == 1:
            clients = order.data[spans[0].place :][: spans[0].width]
            read = reader.read_stack(indices[0], real[0], clients)
        else:
            read = reader.read(_flat(indices), order.data[0])
        num, count, is_real = (
            to_device(_flat(part), loss.device).to(loss.dtype) for part in (sizes, counts, real)
        )
        rows = {"weights": is_real / count, **dict(zip(reader.names, read, strict=True))}
        parts = {name: row.split([at.size for at in indices]) for name, row in rows.items()}
        of_steps = num.split([of.size for of in sizes])
        for place, at in enumerate(indices):
            span_rows = {name: part[place].unflatten(0, at.shape) for name, part in parts.items()}
            yield {"num": of_steps[place].view(at.shape[:2]), **span_rows}


def _flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The elements of all arrays, one after another."""
    return np.concatenate([array.ravel() for array in arrays])


def _num_examples(steps: LocalSteps, data: ClientDataModule) -> int:
    """Number of different examples that local training of a stage has used."""
    return min(steps.total, steps.epoch, len(data.indices))


def steps_of(data: Sequence[ClientDataModule], plans: Sequence[RoundPlan]) -> list[LocalSteps]:
    """Every client's local steps."""
    return [
        local_steps(
            len(client.indices), client.batching, epochs=plan.local_epochs, steps=plan.local_steps
        )
        for client, plan in zip(data, plans, strict=True)
    ]


def _narrow_context(together: Tree, single: Tree, members: slice) -> Tree:
    """The contexts of some clients of the stack, as views; leaves that differ are [S, ...]."""
    return tree_map(
        lambda leaf, alone: leaf if leaf.ndim == alone.ndim else leaf[members], together, single
    )
