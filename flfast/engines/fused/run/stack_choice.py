"""Chooses how many clients train together, and in which form.

`engines/fused/training.py` asks `width` in every round. On a GPU it asks `try_forms` before the
first one. A trial of steps then shows whether stacked clients train as single ones do.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.fx import GraphModule

from flfast.engines.fused.agreement import TrialSteps, agree, perturbations
from flfast.engines.fused.run.client_stack import ClientStack, steps_of
from flfast.engines.fused.run.one_client import ClientProgram
from flfast.engines.fused.run.stack_schedule import auto_width, convolves, draws
from flfast.engines.fused.run.stack_trial import STEPS, StackForm, fastest, least_seconds
from flfast.engines.site import ClientStart
from flfast.state.messages import first_line
from flfast.state.plan import RoundPlan

log = logging.getLogger(__name__)


class StackProgram(ClientStack):
    """Trains clients together, as many as is fast.

    `client` trains single ones. `widths` has stack widths decided so far, by largest batch and
    batching; new ones are added.
    """

    def __init__(self, client: ClientProgram, widths: dict[str, int]) -> None:
        super().__init__(client)
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
        (largest, *_) = steps_of([start.data], [few])[0].sizes
        key = f"{largest} {tuple(plan.batching)}"
        if key not in self._widths:
            width = self._auto_width(start, int(largest), plan.round_idx)
            width = min(width, self.form.width or width)
            if width > 1 and not self._agrees(make_start, few):
                width = 1
            self._widths[key] = width
        return self._widths[key]

    def try_forms(
        self, asked: int | Literal["auto"], make_start: Callable[[], ClientStart], plan: RoundPlan
    ) -> StackForm:
        """The fastest form of stacks in a trial of real steps; arguments are as of `width`."""
        start, few = make_start(), plan._replace(local_steps=STEPS, local_epochs=None)
        (largest, *_) = steps_of([start.data], [few])[0].sizes
        traced = self._traced(start, int(largest), plan.round_idx)
        steps = [step for step, _ in traced]

        def seconds(form: StackForm) -> float:
            self.form = form
            try:
                return self._seconds([make_start() for _ in range(form.width)], few)
            except (RuntimeError, NotImplementedError) as error:
                log.info("stacks: %s fail: %s", form, first_line(error))
                return math.inf

        most = min(auto_width(*pair, num_examples=int(largest), unfold=True) for pair in traced)
        form = fastest(
            seconds,
            most=most if asked == "auto" else asked,
            convolves=any(map(convolves, steps)),
            # Clients of a stack draw together: their numbers depend on how many they are.
            fixed=asked != "auto" or any(map(draws, steps)),
        )
        for programs in self.client.programs:  # recordings of the others would keep memory
            programs.forget()
        return form

    def _seconds(self, stack: Sequence[ClientStart], plan: RoundPlan) -> float:
        """The least seconds of a client's local step in a stack, all stages together."""
        total = 0.0
        with torch.inference_mode():
            contexts = self._load(stack, plan.round_idx)
            for stage, step in enumerate(self.client.steps):
                data = [start.data.subset(step.stage.share, stage) for start in stack]
                steps = steps_of(data, [plan] * len(stack))
                contexts = self._reach(stage, stack, contexts)
                run = partial(self._run, stage, data, contexts, steps)
                total += least_seconds(run, self.client.device)
        return total / (STEPS * len(stack))

    def _auto_width(self, start: ClientStart, num_examples: int, round_idx: int) -> int:
        unfold = self.form.unfold
        return min(
            auto_width(step, model, num_examples=num_examples, unfold=unfold)
            for step, model in self._traced(start, num_examples, round_idx)
        )

    def _traced(
        self, start: ClientStart, num_examples: int, round_idx: int
    ) -> list[tuple[GraphModule, nn.Module]]:
        """The traced step of a client, and its model, of every stage."""
        with torch.inference_mode():
            (context,) = self.client.contexts.on_device([start.context], round_idx)
            indices = start.data.indices[:1].repeat(num_examples)
            rows = self.client.reader.read(indices, start.data)
            batch = self.client.batch(num_examples)
            self._state.load([start._replace(context=context)])
        steps = []
        for stage, programs in enumerate(self.client.programs):
            with torch.inference_mode():
                client_id = start.data.client_id
                context = self.client.reach_stage(self._state, 0, stage, client_id, context)
                settings = self.client.settings(stage, context)
            trees = [self._state.slot(0, stage), context.trees, settings, batch]
            by_name = dict(zip(self.client.reader.names, rows, strict=True))
            step = programs.operators("whole", trees, by_name)
            steps.append((step, self.client.steps[stage].model))
        return steps

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
