"""Local training of one client, by compiled programs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from flfast.algorithms.algorithm import Context
from flfast.datamodules.batches import local_epoch
from flfast.datamodules.federated import ClientDataModule
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.engines.fused.graph.programs import Bound, Programs
from flfast.engines.fused.run.example_rows import ExampleFeed, Feed, Rows, Stored
from flfast.engines.fused.run.features import are_of_each, featured, splits_of
from flfast.engines.fused.run.padding import notices_padding
from flfast.engines.fused.run.step_schedule import Call, Chunk, epoch_chunks
from flfast.engines.fused.run.training_state import (
    Contexts,
    LocalOutcome,
    TrainingState,
    rate,
    readable,
)
from flfast.engines.local_training import ClientStart
from flfast.plan import Batching, RoundPlan
from flfast.state.tree import Tree

CACHED_EXAMPLES = 64
"""Of a full batch at a time on the CPU: 177 µs an example of a small CNN, where all took 302."""


class ClientProgram:
    """Trains clients in work tensors of its own; one instance a device and precision.

    Args:
        steps: the local step of every stage, with their model where and in the type that it
            trains in.
        stored: all examples.
    """

    def __init__(self, steps: Sequence[LocalStep], stored: Stored) -> None:
        self.steps, self.programs = steps, [Programs(step) for step in steps]
        self._exact: dict[int, bool] = {}  # of a stage, found out with the first client
        first = next(iter(steps[0].model.parameters()))
        self.device = first.device
        self.rows = Rows(stored, dtype=first.dtype, device=first.device)
        self.contexts = Contexts(first.device)
        self._work = TrainingState(steps, 1)
        self._exactly: Any = {
            "dtype": self._work.state["loss"].dtype,
            "device": self.device,
        }
        self._frozen: dict[int, bool] = {}  # whether stages have features, likewise
        self._weights: dict[tuple[int, int, float], Tree] = {}

    def train(self, own: ClientStart, plans: Sequence[RoundPlan]) -> LocalOutcome:
        """Local training of one client.

        Args:
            own: its beginning.
            plans: of every stage, with its epochs or steps.
        """
        (context,) = self.contexts.copied([own.context], plans[0].round_idx)
        with torch.inference_mode():
            self._work.load(0, own)
            passed = [self._stage(i, own.data, context, plan) for i, plan in enumerate(plans)]
            (reached,) = self._work.reached(1)
            return self._work.outcome(
                reached,
                context,
                num_seen=sum(stage.num_seen for stage in passed),
                num_examples=max(stage.num_examples for stage in passed),
                num_steps=sum(stage.num_steps for stage in passed),
            )

    def _stage(
        self, stage: int, data: ClientDataModule, context: Context, plan: RoundPlan
    ) -> "_Passed":
        """Train from where the work is."""
        num_seen, num_steps, num_passes = 0, 0, 0
        bound = self._bound(stage, context)
        exact = self.is_exact(stage, data, context)
        batching = data.batching if exact else self._in_cache(data.batching)
        size = len(data.indices)
        epoch = local_epoch(size, batching).num_examples
        feed: Feed | None = None
        while num_steps != plan.local_steps and num_passes != plan.local_epochs:
            left = None if plan.local_steps is None else plan.local_steps - num_steps
            chunks = epoch_chunks(size, batching, num_steps=left, exact=exact)
            stop = chunks[-1].stop
            order = data.next_order()
            if feed is None:
                feed = self._feed(stage, data, bound, () if exact or stop < epoch else chunks)
            for chunk in chunks:
                rows = feed.rows(order[chunk.start : chunk.stop], chunk.padding)
                for call in chunk.calls:
                    if call.size:
                        feed.step(bound(call), _needed(call, rows), num=call.num)
                    else:
                        bound(call)({}, num=call.num)
            num_seen += stop
            num_steps += sum(chunk.num_steps for chunk in chunks)
            num_passes += 1
        return _Passed(num_seen, min(num_seen, epoch, size), num_steps)

    def _feed(
        self,
        stage: int,
        data: ClientDataModule,
        bound: Callable[[Call], Bound],
        chunks: Sequence[Chunk],
    ) -> Feed:
        """What the steps of a stage are fed: features, if all of them will be needed."""
        examples, order = ExampleFeed(self.rows, data), data.indices
        known = self._frozen.get(stage)
        other = len(order) < 2 or data.data.examples.transform.augments
        if not chunks or known is False or other:
            return examples
        splits = splits_of(examples, bound, order, chunks)
        if known is None:
            known = splits is not None and are_of_each(examples, bound, order, chunks, splits)
            self._frozen[stage] = known
        if splits is None or not known:
            return examples
        return featured(examples, bound, order, chunks, splits) or examples

    def is_exact(self, stage: int, data: ClientDataModule, context: Context) -> bool:
        """Whether batches must keep their size, since padding would change what they say."""
        step = self.steps[stage]
        if not step.algorithm.separable:
            return True
        if stage not in self._exact:
            few = data.data.train_clients.indices[:4]
            # Random numbers that nobody else draws from.
            own = data.data.client(data.client_id, batching=data.batching)
            state = self._work.slot(0, stage, grads=True)
            trees = [state, readable(context), self.settings(context)]
            self._exact[stage] = notices_padding(step, trees, self.rows.ready(few, own))
        return self._exact[stage]

    def settings(self, context: Context) -> Tree:
        """What all steps of a round share."""
        # Filled there: a number that is copied there waits for what runs there.
        return {"lr": torch.full((), rate(context), dtype=torch.float64, device=self.device)}

    def batch(self, num_examples: int) -> Tree:
        """What steps of whole batches share of them."""
        return self._batch(Call("whole", 0, 1, num_examples, num_examples, 1.0))

    def _in_cache(self, batching: Batching) -> Batching:
        """B = infinity in parts that stay in a core's cache, which changes no number."""
        whole = batching.batch_size == -1 and batching.micro_batch is None
        small = whole and self.device.type == "cpu"
        return batching._replace(micro_batch=CACHED_EXAMPLES) if small else batching

    def _bound(self, stage: int, context: Context) -> Callable[[Call], Bound]:
        """Steps of calls, for one client."""
        found: dict[Call, Bound] = {}
        settings = self.settings(context)

        def bound(call: Call) -> Bound:
            alike = call._replace(offset=0, num=0)
            if alike not in found:
                state = self._work.slot(0, stage, grads=call.kind != "whole")
                trees = [state, readable(context), settings, self._batch(call)]
                found[alike] = self.programs[stage].bind(call.kind, trees)
            return found[alike]

        return bound

    def _batch(self, call: Call) -> Tree:
        """What the steps of a call share of their batches: tensors, made once."""
        key = (call.size, call.real, call.share)
        if key not in self._weights and call.size:
            weights = torch.zeros(call.size, **self._exactly)
            weights[: call.real] = 1 / call.real
            num, share = (torch.full((), n, **self._exactly) for n in (call.real, call.share))
            self._weights[key] = {"weights": weights, "num": num, "share": share}
        return self._weights.get(key, {})


class _Passed(NamedTuple):
    """What went by in a stage; see `Finished` and `LocalOutcome`."""

    num_seen: int
    num_examples: int
    num_steps: int


def _needed(call: Call, rows: Tree) -> Tree:
    """A call's part of a chunk's rows, by step."""
    stop = call.offset + call.num * call.size
    return {
        name: row[call.offset : stop].unflatten(0, (call.num, call.size))
        for name, row in rows.items()
    }
