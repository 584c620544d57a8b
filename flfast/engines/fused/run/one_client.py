"""Trains one client at a time with the traced local step.

`ClientProgram.train` is called by `engines/fused/training.py` for every client that trains alone:

1. `training_state.py` copies the client's start into the training state.
2. `step_schedule.py` divides each local epoch into chunks of rows and spans of equal steps.
3. `example_rows.py` reads the rows of a chunk; `features.py` replaces frozen layers' inputs.
4. `graph/programs.py` runs each span's steps, which change the training state in place.
5. `training_state.py` copies the trained weights and optimizer state out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flfast.algorithms.contract import Context, LocalStage, Measure
from flfast.datamodules.batches import local_epoch
from flfast.datamodules.client_data import ClientDataModule
from flfast.datamodules.stored_examples import StoredExamples
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.engines.fused.graph.programs import BoundStep, StepPrograms
from flfast.engines.fused.graph.skipped_passes import skipped
from flfast.engines.fused.run.example_rows import ExampleReader, ExampleRows
from flfast.engines.fused.run.features import FeatureRows, FrozenLayers
from flfast.engines.fused.run.step_schedule import (
    Chunk,
    Span,
    epoch_chunks,
    padding_changes_results,
    weights_by_count,
)
from flfast.engines.fused.run.training_state import (
    ContextCache,
    TrainingState,
    bare_result,
    step_lr,
)
from flfast.engines.local_training import TrainedStack
from flfast.engines.site import ClientStart
from flfast.state.plan import Batching, RoundPlan
from flfast.state.precision import widest_float
from flfast.state.tree import Tree

CACHED_EXAMPLES = 64
"""Micro-batch of a full-batch step on the CPU. A small CNN took 177 µs per example with it, and
302 µs with the whole batch, whose activations do not fit in the cache."""


MAX_BATCHES = 4096
"""Kinds of batches whose shared inputs are kept."""


class ClientProgram:
    """Trains clients one after another in the same tensors; one object per device and precision.

    Args:
        steps: the local step of every stage. Their model is on the device and in the data type
            that it trains in.
        stored: all examples.
        measure: (measure, weights, client, context) -> the context with the measure's sums.

    Attributes:
        state: of the client that trains.
    """

    def __init__(
        self,
        steps: Sequence[LocalStep],
        stored: StoredExamples,
        measure: Callable[[Measure, Tree, int, Context], Context],
    ) -> None:
        self.steps, self.programs = steps, [StepPrograms(step) for step in steps]
        param = next(iter(steps[0].model.parameters()))
        self.device = param.device
        self.reader = ExampleReader(stored, dtype=param.dtype, device=param.device)
        self.contexts = ContextCache(param.device)
        self.state = TrainingState(steps, 1)
        self._loss_options: Any = {"dtype": self.state.state["loss"].dtype, "device": self.device}
        self._skipped = skipped()
        # By stage; the first client decides for all.
        self._exact: dict[int, bool] = {}
        self._uses_features: dict[int, bool] = {}
        self._batches: dict[tuple[int, int, float], Tree] = {}
        self._measure, self._measures = measure, measures_before(steps[0].algorithm.stages)

    def train(self, start: ClientStart, plans: Sequence[RoundPlan]) -> TrainedStack:
        """Local training of one client, as a stack; `plans` are those of every stage."""
        start.seed_torch()
        (context,) = self.contexts.on_device([start.context], plans[0].round_idx)
        with torch.inference_mode():
            self.state.load([start._replace(context=context)])
            totals = []
            for stage, plan in enumerate(plans):
                context = self.reach_stage(self.state, 0, stage, start.data.client_id, context)
                data = start.data.subset(self.steps[stage].stage.share, stage)
                totals.append(self._train_stage(stage, data, context, plan))
            context = self.reach_stage(self.state, 0, len(plans), start.data.client_id, context)
            num_seen, num_examples, num_steps = zip(*totals, strict=True)
            bare = bare_result(
                start,
                context.measured,
                num_seen=sum(num_seen),
                num_examples=max(num_examples),
                num_steps=sum(num_steps),
            )
        (trained,) = self.state.trained([bare], [start._replace(context=context)])
        return trained

    def reach_stage(
        self, state: TrainingState, place: int, stage: int, client_id: int, context: Context
    ) -> Context:
        """Measure what comes before a stage, or after the last one, and begin the stage.

        A stage may change the weights as it begins. The state holds the client at `place`; the
        context has what was measured so far.
        """
        for measure in self._measures[stage]:
            context = self._measure(measure, state.weights(place), client_id, context)
        if stage < len(self.steps):
            state.begin(place, stage, context)
        return context

    def _train_stage(
        self, stage: int, data: ClientDataModule, context: Context, plan: RoundPlan
    ) -> tuple[int, int, int]:
        """Train a stage from the current training state.

        Returns:
            The number of examples seen, of different ones, and of local steps.
        """
        num_read, num_seen, num_steps, num_passes = 0, 0, 0, 0
        bind = self._binder(stage, context)
        exact = self.is_exact(stage, data, context)
        batching = data.batching if exact else self._fit_cache(data.batching)
        size = len(data.indices)
        epoch = local_epoch(size, batching).num_examples
        source: ExampleRows | FeatureRows | None = None
        while num_steps != plan.local_steps and num_passes != plan.local_epochs:
            left = None if plan.local_steps is None else plan.local_steps - num_steps
            chunks = epoch_chunks(size, batching, num_steps=left, exact=exact)
            stop = chunks[-1].stop
            order = data.next_order()
            if source is None:
                # Features of examples that no step reads would be wasted.
                source = self._row_source(
                    stage, data, bind, () if exact or stop < epoch else chunks
                )
            counts = data.data.examples.counts
            if counts is not None:
                chunks = weights_by_count(chunks, counts[order])
            for chunk in chunks:
                rows = source.rows(order[chunk.start : chunk.stop], chunk.padding)
                for span in chunk.spans:
                    if span.size:
                        source.step(bind(span), _span_rows(span, rows), num=span.num)
                    else:
                        bind(span)({}, num=span.num)
            num_read += stop
            num_seen += data.data.examples.num_counted(order[:stop])
            num_steps += sum(chunk.num_steps for chunk in chunks)
            num_passes += 1
        return num_seen, min(num_read, epoch, size), num_steps

    def _row_source(
        self,
        stage: int,
        data: ClientDataModule,
        bind: Callable[[Span], BoundStep],
        chunks: Sequence[Chunk],
    ) -> ExampleRows | FeatureRows:
        """The rows that the steps of a stage read: features where possible, otherwise examples.

        The chunks are those of a whole local epoch; empty if features must not be used.
        """
        examples, order = ExampleRows(self.reader, data), data.indices
        unsuitable = len(order) < 2 or data.data.examples.transform.augments
        unsuitable = unsuitable or "frozen_layers" in self._skipped
        if not chunks or unsuitable or not self._uses_features.get(stage, True):
            return examples
        frozen = FrozenLayers(examples, bind, order, chunks)
        self._uses_features.setdefault(stage, frozen.exist)
        return (frozen.features() if frozen.exist else None) or examples

    def is_exact(self, stage: int, data: ClientDataModule, context: Context) -> bool:
        """Whether batches must keep their exact size, because padding would change the result."""
        step = self.steps[stage]
        splits = step.algorithm.splits_batches and step.task_type.separable
        splits = splits and step.task_type.padded
        if not splits or "padding" in self._skipped:
            return True
        if stage not in self._exact:
            few = data.data.train_clients.indices[:4]
            # The trial reads through its own data module. It must not advance the client's
            # augmentation generator.
            trial = ClientDataModule(data.data, data.client_id, batching=data.batching)
            trees = [self.state.slot(0, stage), context.trees, self.settings(stage, context)]
            rows = self.reader.read(few, trial)
            self._exact[stage] = padding_changes_results(step, trees, rows)
        return self._exact[stage]

    def settings(self, stage: int, context: Context) -> Tree:
        """Inputs that all steps of a stage share: `lr` [], of the widest type."""
        lr = step_lr(context, self.steps[stage].stage)
        # `full` fills on the device. Copying a number there would wait for running kernels.
        return {"lr": torch.full((), lr, dtype=widest_float(self.device), device=self.device)}

    def batch(self, num_examples: int) -> Tree:
        """Inputs that all steps of unpadded batches share; see `LocalStep`."""
        return self._batch(Span("whole", 0, 1, num_examples, num_examples, 1.0))

    def _fit_cache(self, batching: Batching) -> Batching:
        """Divide a full batch on the CPU into micro-batches, which give the same gradient."""
        whole = batching.batch_size == -1 and batching.micro_batch is None
        small = whole and self.device.type == "cpu"
        return batching._replace(micro_batch=CACHED_EXAMPLES) if small else batching

    def _binder(self, stage: int, context: Context) -> Callable[[Span], BoundStep]:
        """A function that gives the bound step of a span; equal spans share one."""
        bound_steps: dict[Span, BoundStep] = {}
        settings = self.settings(stage, context)

        def bind(span: Span) -> BoundStep:
            key = span._replace(offset=0, num=0)
            if key not in bound_steps:
                state = self.state.slot(0, stage, grads=span.kind != "whole")
                trees = [state, context.trees, settings, self._batch(span)]
                bound_steps[key] = BoundStep(self.programs[stage], span.kind, trees)
            return bound_steps[key]

        return bind

    def _batch(self, span: Span) -> Tree:
        """Inputs that all steps of a span share, as tensors made once; see `LocalStep`."""
        key = (span.size, span.real, span.weight)
        if key not in self._batches and span.size:
            weights = torch.zeros(span.size, **self._loss_options)
            weights[: span.real] = 1 / span.real
            num, share = (
                torch.full((), n, **self._loss_options) for n in (span.real, span.weight)
            )
            self._batches[key] = {"weights": weights, "num": num, "share": share}
            if len(self._batches) > MAX_BATCHES:  # where every step has shares of its own
                self._batches.pop(next(iter(self._batches)))
        return self._batches.get(key, {})


def measures_before(stages: Sequence[LocalStage | Measure]) -> list[list[Measure]]:
    """The measures before each stage of training, and after the last one."""
    groups: list[list[Measure]] = [[]]
    for stage in stages:
        if isinstance(stage, Measure):
            groups[-1].append(stage)
        else:
            groups.append([])
    return groups


def _span_rows(span: Span, rows: Tree) -> Tree:
    """The part of a chunk's rows that a span reads, each [num, B, ...]."""
    stop = span.offset + span.num * span.size
    return {
        name: row[span.offset : stop].unflatten(0, (span.num, span.size))
        for name, row in rows.items()
    }
