"""The fused engine: trains all clients of a round in one Lightning `fit`, by compiled programs.

A client's update takes this way:

1. `FusedTraining.choose` refuses plans that `obstacles.py` lists, and plans for which a trial in
   `agreement.py` differs from the eager engine.
2. `train` starts one `fit`. Its training step calls `train_stacks`.
3. `stacks` groups clients that train together; other clients form stacks of one.
4. `run/one_client.py` or `run/client_stack.py` trains a stack, with the programs of `graph/`.
5. `deliver` receives the clients' results as soon as their stack is done.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from flfast.algorithms.contract.downloads import Download, first_downloads
from flfast.channel.sent import LocalResult
from flfast.datamodules.batches import local_epoch
from flfast.distributed.world import gather
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.agreement import disagreement
from flfast.engines.fused.graph.executor import wanted
from flfast.engines.fused.graph.local_step import Clip, LocalStep
from flfast.engines.fused.graph.loss_scale import loss_scale
from flfast.engines.fused.graph.skipped_passes import skipped
from flfast.engines.fused.graph.update_rules import local_optimizer
from flfast.engines.fused.obstacles import obstacle
from flfast.engines.fused.run.one_client import ClientProgram
from flfast.engines.fused.run.stack_choice import StackProgram
from flfast.engines.fused.run.stack_schedule import (
    group_clients,
    local_steps,
    with_equal_leaves,
)
from flfast.engines.fused.run.stack_trial import StackForm
from flfast.engines.local_training import Deliver, check_allowed
from flfast.engines.site import ClientStart, Site
from flfast.lit.trainers import CohortModule
from flfast.state.messages import first_line
from flfast.state.options import Count
from flfast.state.plan import Batching, RoundPlan


class FusedTraining:
    """One `fit` per round; its training step trains all clients of this rank. See `LocalTraining`.

    `decided` has earlier decisions of `auto`, by name; new ones are added. `stack` is the number
    of clients that train together; `auto` chooses it by speed.
    """

    name = "fused"

    def __init__(
        self, site: Site, decided: dict[str, Any], *, stack: Count | Literal["auto"]
    ) -> None:
        wanted(), skipped()  # raise if the environment names what is unknown
        self._site, self._decided, self._stack = site, decided, stack
        self._programs: dict[object, StackProgram] = {}

    def choose(self, plan: RoundPlan) -> str:
        """`fused`; see `LocalTraining`."""
        check_allowed(self._site.algorithm, self._site.joint, plan, self._site.module.task_type)
        reason = self.obstacle(plan)
        if reason is not None:
            raise ValueError(f"engine=fused: {reason}; use engine=auto or engine=eager")
        self.check_stack(plan)
        self.agree_on_stacks(plan)
        return self.name

    def obstacle(self, plan: RoundPlan) -> str | None:
        """Why a plan cannot run as a program; None if it can."""
        trainer = self._site.trainers.trainer(plan).trainer
        reason = obstacle(plan, self._site.module, self._site.data, trainer)
        if reason is not None:
            # Not stored in `decided`: a resumed run may be on another machine.
            return reason
        if not self._site.algorithm.training_stages:
            return None  # there are no local steps to try
        key = f"{plan.phase} {plan.strategy} {plan.shard}"
        known = self._decided.setdefault("engines", {})
        if key not in known:
            known[key] = disagreement(self._site, self, plan)
        return known[key]

    def check_stack(self, plan: RoundPlan) -> None:
        """Try one stacked local step, if the user set their number; time stacks on a GPU.

        Raises:
            ValueError: if clients cannot train together.
        """
        if self._stack not in {"auto", 1}:
            self._check_number(plan)
        self._time_stacks(plan)

    def _check_number(self, plan: RoundPlan) -> None:
        reason = not_stackable(plan.batching)
        if reason is None:
            client_id, weights = self._site.data.first_client, self._site.first_weights
            download = first_downloads(self._site.algorithm, weights, client_id)
            one_step = plan._replace(local_steps=1, local_epochs=None)
            results: list[LocalResult] = []
            try:
                self.train([client_id, client_id], download, one_step, results.extend)
            except (RuntimeError, NotImplementedError) as error:
                reason = f"the model cannot be stacked: {first_line(error)}"
        if reason is not None:
            raise ValueError(
                f"engine.stack={self._stack}: {reason}; use engine.stack=auto or engine.stack=1"
            )

    def _time_stacks(self, plan: RoundPlan) -> None:
        """Choose the form of a plan's stacks on a GPU; see `StackProgram.try_forms`."""
        trainer = self._site.trainers.trainer(plan)
        if trainer.trainer.strategy.root_device.type == "cpu" or self._stack == 1:
            return
        if not self._site.algorithm.training_stages:
            return
        forms = self._decided.setdefault("stacks", {})
        if not_stackable(plan.batching) is not None or _form_key(plan) in forms:
            return
        client_id, weights = self._site.data.first_client, self._site.first_weights
        download = first_downloads(self._site.algorithm, weights, client_id)
        start = self.outside_precision()(self._site.start)

        def trial(_: Sequence[int]) -> None:
            make_start = partial(start, client_id, download, plan)
            form = self.programs(plan).try_forms(self._stack, make_start, plan)
            forms[_form_key(plan)] = [*form]

        trainer.fit_cohort(CohortModule(self._site.module, trial), [client_id])

    def agree_on_stacks(self, plan: RoundPlan) -> None:
        """Take the first rank's forms of stacks on a GPU; collective."""
        device = self._site.trainers.trainer(plan).trainer.strategy.root_device
        if device.type != "cpu":
            forms = self._decided.setdefault("stacks", {})
            forms |= gather(self._site.world, forms)[0]

    def train(
        self, clients: Sequence[int], download: Download, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """Train the clients in one `fit`; see `LocalTraining`."""
        if not clients:
            return
        if not self._site.algorithm.training_stages:  # measures run in the same way everywhere
            EagerTraining(self._site).train(clients, download, plan, deliver)
            return
        trainer = self._site.trainers.trainer(plan)

        def train_stacks(clients: Sequence[int]) -> None:
            programs, equal = self.programs(plan), not self._site.keeps_states
            for stack in self.stacks(clients, download, plan):
                with self.outside_precision():
                    starts = [self._site.start(k, download, plan) for k in stack]
                for places in [range(len(starts))] if equal else with_equal_leaves(starts):
                    part = [starts[place] for place in places]
                    self._train_part(programs, part, deliver)

        module = CohortModule(self._site.module, train_stacks)
        trainer.fit_cohort(module, clients)

    def _train_part(
        self, programs: StackProgram, part: Sequence[ClientStart], deliver: Deliver
    ) -> None:
        """Train one client, or a stack whose states have equal leaves, and deliver the results."""
        stages = self._site.algorithm.training_stages
        plans = [[start.stage_plan(stage) for stage in stages] for start in part]
        if len(part) == 1:
            alone = programs.client.train(part[0], plans[0])
            with self.outside_precision():
                deliver(alone)
            return
        for trained in programs.train(part, plans):
            with self.outside_precision():
                deliver(trained)

    def programs(self, plan: RoundPlan) -> StackProgram:
        """The programs of a plan, for stacks and `client`; the model must be on its device."""
        key = (plan.phase, plan.strategy, plan.precision, self._site.module.device)
        if key not in self._programs:
            widths = self._decided.setdefault("widths", {})
            known = widths.setdefault(" ".join(map(str, key)), {})
            measure = partial(self.outside_precision()(self._site.measured), plan=plan)
            client = ClientProgram(self._local_steps(plan), self._site.data.stored, measure)
            self._programs[key] = StackProgram(client, known)
        form = self._decided.get("stacks", {}).get(_form_key(plan), ())
        self._programs[key].form = StackForm(*form)
        return self._programs[key]

    def _local_steps(self, plan: RoundPlan) -> list[LocalStep]:
        """The local step of every stage."""
        site, trainer = self._site, self._site.trainers.trainer(plan)
        by_value = trainer.trainer.gradient_clip_algorithm == "value"
        params, scale = list(site.module.params.values()), loss_scale(trainer.scaler_state)
        return [
            LocalStep(
                site.module,
                local_optimizer(site.module.optimizer_of(stage)(params, lr=plan.lr), scale),
                stage=stage._replace(trains=site.module.trained(stage, site.joint["params"])),
                joint=site.joint,
                clip=Clip(trainer.clip_value, by_value),
                structure=getattr(site.data.examples.inputs, "spec", None),
            )
            for stage in site.algorithm.training_stages
        ]

    @contextmanager
    def outside_precision(self) -> Iterator[None]:
        """Suspend the Trainer's precision (autocast, default data type) outside of local steps.

        It is a context, or makes a function run in one at each call.
        """
        dtype, device = torch.get_default_dtype(), self._site.module.device.type
        if dtype == torch.float32 and not torch.is_autocast_enabled(device):
            yield
            return
        torch.set_default_dtype(torch.float32)
        try:
            with torch.autocast(device, enabled=False):
                yield
        finally:
            torch.set_default_dtype(dtype)

    def stacks(
        self, clients: Sequence[int], download: Download, plan: RoundPlan
    ) -> list[list[int]]:
        """Group clients into stacks; a stack of one is a client that trains alone."""
        width, sizes = 1, self._site.data.train_clients
        if len(clients) > 1 and not_stackable(plan.batching) is None:
            largest = max(clients, key=lambda k: len(sizes.indices_of(k)))
            start = self.outside_precision()(self._site.start)
            width = self.programs(plan).width(
                self._stack, lambda: start(largest, download, plan), plan
            )
        if width == 1:
            return [[client_id] for client_id in clients]
        batching = plan.batching._replace(limit=self._site.trainers.trainer(plan).train_limit)
        exact = not self._site.module.task_type.padded
        rates: dict[float, list[int]] = {}  # all clients of a stack have one learning rate
        for client_id in clients:
            rates.setdefault(download.plan(client_id, plan).lr, []).append(client_id)

        def sizes_of_steps(client_id: int) -> np.ndarray:
            num_examples = len(sizes.indices_of(client_id))
            epoch_steps = local_epoch(num_examples, batching).num_steps
            of_client = download.plan(client_id, plan).with_work_fraction(epoch_steps)
            return local_steps(
                num_examples, batching, epochs=of_client.local_epochs, steps=of_client.local_steps
            ).sizes

        return [
            [members[place] for place in stack]
            for members in rates.values()
            for stack in group_clients([sizes_of_steps(k) for k in members], width, exact=exact)
        ]


def _form_key(plan: RoundPlan) -> str:
    """Name of what the form of stacks depends on; the same on all ranks."""
    return f"{plan.phase} {plan.strategy} {plan.precision}"


def not_stackable(batching: Batching) -> str | None:
    """Why the batching does not allow stacks; None if it does."""
    whole = batching.accumulate == 1 and batching.micro_batch is None
    return None if whole else "micro_batch and trainer.accumulate_grad_batches cut local steps"
