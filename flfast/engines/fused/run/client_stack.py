"""Trains a stack of clients: each run of a program takes one local step of all of them.

`StackProgram` is used by `engines/fused/training.py` beside `ClientProgram` (`one_client.py`):

1. `width` decides, with `stack_schedule.py`, how many clients train together.
2. `stack_schedule.py` groups clients of similar length into stacks before training.
3. `train` loads the clients into one training state, whose leaves have a client axis in front.
4. `stack_schedule.stack_spans` and `example_rows.py` give the spans and their rows.
5. `graph/programs.py` runs the spans with the step that `graph/vmapped.py` made for stacks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Literal

import numpy as np
import torch

from flfast.algorithms.contract import Context
from flfast.datamodules.client_data import ClientDataModule
from flfast.engines.fused.agreement import TrialSteps, agree, perturbations
from flfast.engines.fused.graph.programs import BoundStep
from flfast.engines.fused.graph.trace import like
from flfast.engines.fused.run.one_client import ClientProgram
from flfast.engines.fused.run.stack_schedule import (
    LocalSteps,
    StackOrder,
    StackSpan,
    auto_width,
    local_steps,
    read_groups,
    stack_spans,
)
from flfast.engines.fused.run.training_state import TrainingState, bare_result
from flfast.engines.local_training import TrainedStack
from flfast.engines.site import ClientStart
from flfast.state.plan import RoundPlan
from flfast.state.precision import to_device
from flfast.state.tree import Tree, joined, tree_map

ROWS_PER_READ = {"cpu": 512, "cuda": 8192}
"""Rows that one gather reads: few enough for a core's cache, enough to occupy a GPU."""


class StackProgram:
    """Trains clients together, in tensors whose first axis is the client.

    `client` trains single ones. `widths` has stack widths decided so far, by largest batch and
    batching; new ones are added.
    """

    def __init__(self, client: ClientProgram, widths: dict[str, int]) -> None:
        self.client = client
        self._state = client.state  # until a stack is wider
        self._widths = widths

    def width(
        self, asked: int | Literal["auto"], make_start: Callable[[], ClientStart], plan: RoundPlan
    ) -> int:
        """The number of clients to train together.

        Args:
            asked: this number; or `auto`, the largest number that is faster, and 1 if a trial
                finds that stacked clients train to other weights than single ones.
            make_start: gives the start of the client with the largest batches.
            plan: epochs or steps, learning rate.
        """
        if asked != "auto":
            return asked
        start = make_start()
        few = plan._replace(local_steps=2, local_epochs=None)
        (largest, *_) = _local_steps([start.data], [few])[0].sizes
        key = f"{largest} {tuple(plan.batching)}"
        if key not in self._widths:
            width = self._auto_width(start, int(largest), plan.round_idx)
            if width > 1 and not self._agrees(make_start, few):
                width = 1
            self._widths[key] = width
        return self._widths[key]

    def _auto_width(self, start: ClientStart, num_examples: int, round_idx: int) -> int:
        with torch.inference_mode():
            (context,) = self.client.contexts.on_device([start.context], round_idx)
            indices = start.data.indices[:1].repeat(num_examples)
            rows = self.client.reader.read(indices, start.data)
            batch = self.client.batch(num_examples)
            self._state.load([start._replace(context=context)])
        widths = []
        for stage, programs in enumerate(self.client.programs):
            with torch.inference_mode():
                client_id = start.data.client_id
                context = self.client.reach_stage(self._state, 0, stage, client_id, context)
                settings = self.client.settings(stage, context)
            trees = [self._state.slot(0, stage), context.trees, settings, batch]
            by_name = dict(zip(self.client.reader.names, rows, strict=True))
            step = programs.operators("whole", trees, by_name)
            model = self.client.steps[stage].model
            widths.append(auto_width(step, model, num_examples=num_examples))
        return min(widths)

    def _agrees(self, make_start: Callable[[], ClientStart], plan: RoundPlan) -> bool:
        """Whether a stack of the same client twice trains to the weights of the single client."""
        plans = [plan] * len(self.client.steps)
        expected = self._train_alone(make_start(), plans)
        try:
            pair = self.train([make_start(), make_start()], [plans, plans])
            stacked = [result.done.weights for part in pair for result in part.results()]
        except Exception:  # noqa: BLE001 - vmap and tracing may raise any exception
            return False
        if all(agree(weights, expected) for weights in stacked):
            return True
        nearby = [
            self._train_alone(start._replace(context=context), plans)
            for perturb in perturbations(plan.precision, self.client.device)
            for start in [make_start()]
            for context in [start.context._replace(start=perturb(start.context.start))]
        ]
        return all(agree(weights, expected, nearby=nearby) for weights in stacked)

    def _train_alone(self, start: ClientStart, plans: Sequence[RoundPlan]) -> TrialSteps:
        (result,) = self.client.train(start, plans)
        return TrialSteps(start.context.start, result.done.weights)

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
        stages = [*map(_local_steps, parts, zip(*plans, strict=True))]
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
            return BoundStep(programs, "whole", trees, single=None if width == 1 else single)

        spans = stack_spans(order.sizes, data[0].batching, exact=exact)
        num_rows = ROWS_PER_READ.get(self.client.device.type, ROWS_PER_READ["cpu"])
        # Each read of augmented examples draws from the generators of its clients.
        alone = data[0].data.examples.transform.augments
        for group in read_groups(spans, num_rows, together=not alone):
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


def _local_steps(data: Sequence[ClientDataModule], plans: Sequence[RoundPlan]) -> list[LocalSteps]:
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
