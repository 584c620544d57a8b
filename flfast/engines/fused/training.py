"""The fused engine: local training of all clients in one `fit`, as compiled programs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch

from flfast.engines.fused.agreement import disagreement
from flfast.engines.fused.graph.executor import wanted
from flfast.engines.fused.graph.local_step import Clip, LocalStep
from flfast.engines.fused.graph.update_rules import local_optimizer
from flfast.engines.fused.obstacles import obstacle
from flfast.engines.fused.run.client_stack import StackProgram
from flfast.engines.fused.run.example_rows import StoredExamples
from flfast.engines.fused.run.one_client import ClientProgram
from flfast.engines.fused.run.stack_schedule import group_clients, local_steps
from flfast.engines.fused.run.stack_width import not_stackable
from flfast.engines.fused.run.training_state import LocalOutcome
from flfast.engines.local_training import ClientStart, Deliver, LocalResult, stage_plan
from flfast.engines.restrictions import check_allowed
from flfast.engines.site import Site
from flfast.lit.cohort_module import CohortDataModule, CohortModule
from flfast.options import Count
from flfast.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import read_weights


class TrainingPrograms(NamedTuple):
    """What trains the clients of a plan.

    Attributes:
        client: one client.
        stack: several together.
    """

    client: ClientProgram
    stack: StackProgram


class FusedTraining:
    """One `fit` per round; its training step trains all clients of this rank.

    See `LocalTraining`.

    Args:
        site: of this rank.
        decided: what `auto` stood for so far, by name; new decisions are added.
        stack: clients that are trained together in one program; `auto` is as many as are faster.
    """

    name = "fused"

    def __init__(
        self, site: Site, decided: dict[str, Any], *, stack: Count | Literal["auto"]
    ) -> None:
        wanted()  # refuses an unknown executor before training
        self._site, self._decided, self._stack = site, decided, stack
        self._stored = StoredExamples(site.data)
        self._programs: dict[object, TrainingPrograms] = {}

    def choose(self, plan: RoundPlan) -> str:
        """`fused`; see `LocalTraining`."""
        check_allowed(self._site.algorithm, self._site.joint, plan)
        reason = self.obstacle(plan)
        if reason is not None:
            raise ValueError(f"engine=fused: {reason}; use engine=auto or engine=eager")
        self.check_stack(plan)
        return self.name

    def obstacle(self, plan: RoundPlan) -> str | None:
        """Why a plan cannot run as a program; None if it can."""
        trainer = self._site.trainers.trainer(plan).trainer
        reason = obstacle(plan, self._site.module, self._site.data, trainer)
        if reason is not None:  # may depend on the machine, so a resumed run asks again
            return reason
        key = f"{plan.phase} {plan.strategy} {plan.shard}"
        known = self._decided.setdefault("engines", {})
        if key not in known:
            known[key] = disagreement(self._site, self, plan)
        return known[key]

    def check_stack(self, plan: RoundPlan) -> None:
        """Try a number of clients per stack that was asked for, before training.

        Raises:
            ValueError: if they cannot be trained together.
        """
        if self._stack in {"auto", 1}:
            return
        reason = not_stackable(plan.batching)
        if reason is None:
            algorithm = self._site.algorithm
            server = algorithm.server_state(read_weights(self._site.model))
            one_step = plan._replace(local_steps=1, local_epochs=None)
            results: list[LocalResult] = []
            try:
                self.train([0, 0], algorithm.broadcast(server), one_step, results.append)
            except (RuntimeError, NotImplementedError) as error:
                reason = f"the model cannot be stacked: {str(error).splitlines()[0]}"
        if reason is not None:
            raise ValueError(
                f"engine.stack={self._stack}: {reason}; use engine.stack=auto or engine.stack=1"
            )

    def train(
        self, clients: Sequence[int], broadcast: Tree, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """One `fit` over the clients; see `LocalTraining`."""
        if not clients:
            return
        trainer = self._site.trainers.trainer(plan)
        cohort = _CohortTraining(self, broadcast, plan, deliver)
        module = CohortModule(self._site.module, cohort.train)
        trainer.fit_cohort(module, CohortDataModule(clients))

    def programs(self, plan: RoundPlan) -> "TrainingPrograms":
        """The programs of a plan; the model must be on the plan's device."""
        key = (plan.phase, plan.strategy, plan.precision, self._site.module.device)
        if key not in self._programs:
            widths = self._decided.setdefault("widths", {})
            known = widths.setdefault(" ".join(map(str, key)), {})
            client = ClientProgram(self._local_steps(plan), self._stored)
            self._programs[key] = TrainingPrograms(client, StackProgram(client, known))
        return self._programs[key]

    def _local_steps(self, plan: RoundPlan) -> list[LocalStep]:
        """The local step of every stage."""
        site, trainer = self._site, self._site.trainers.trainer(plan)
        by_value = trainer.trainer.gradient_clip_algorithm == "value"
        params = list(site.module.params.values())
        optimizer = local_optimizer(site.module.make_optimizer(params, lr=plan.lr))
        return [
            LocalStep(
                site.model,
                site.algorithm,
                optimizer,
                trained=site.module.trained(stage, site.joint["params"]),
                joint=site.joint,
                clip=Clip(trainer.clip_value, by_value),
            )
            for stage in site.algorithm.stages
        ]

    def start(self, client_id: int, broadcast: Tree, plan: RoundPlan) -> ClientStart:
        """Where a client starts; see `Site.start`."""
        with self.outside_precision():
            return self._site.start(client_id, broadcast, plan)

    def stage_plans(self, plan: RoundPlan) -> list[RoundPlan]:
        """The plan of every stage of local training."""
        return [stage_plan(plan, stage) for stage in self._site.algorithm.stages]

    @contextmanager
    def outside_precision(self) -> Iterator[None]:
        """Suspend what the Trainer's precision does to operators: it is for local steps only."""
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.autocast(self._site.module.device.type, enabled=False):
                yield
        finally:
            torch.set_default_dtype(dtype)

    def stacks(self, clients: Sequence[int], broadcast: Tree, plan: RoundPlan) -> list[list[int]]:
        """Clients by stack; a stack of one is a client that trains alone."""
        width, sizes = 1, self._site.data.train_clients
        if len(clients) > 1 and not_stackable(plan.batching) is None:
            largest = max(clients, key=lambda k: len(sizes.indices_of(k)))
            width = self.programs(plan).stack.width(
                self._stack, lambda: self.start(largest, broadcast, plan), plan
            )
        if width == 1:
            return [[client_id] for client_id in clients]
        limit = self._site.trainers.trainer(plan).train_limit
        steps = [
            local_steps(
                len(sizes.indices_of(client_id)),
                plan.batching._replace(limit=limit),
                epochs=plan.local_epochs,
                steps=plan.local_steps,
            ).sizes
            for client_id in clients
        ]
        return [[clients[place] for place in stack] for stack in group_clients(steps, width)]


class _CohortTraining:
    """Local training of one round's clients, called from inside of the Trainer's `fit`."""

    def __init__(
        self, training: FusedTraining, broadcast: Tree, plan: RoundPlan, deliver: Deliver
    ) -> None:
        self._training, self._broadcast = training, broadcast
        self._plan, self._deliver = plan, deliver

    def train(self, clients: Sequence[int]) -> None:
        """Train all clients, stack after stack."""
        programs = self._training.programs(self._plan)
        stages = self._training.stage_plans(self._plan)
        for stack in self._training.stacks(clients, self._broadcast, self._plan):
            starts = [self._training.start(k, self._broadcast, self._plan) for k in stack]
            if len(stack) == 1:
                outcomes: Iterable[LocalOutcome] = [programs.client.train(starts[0], stages)]
            else:
                outcomes = programs.stack.train(starts, stages)
            for client_id, start, outcome in zip(stack, starts, outcomes, strict=True):
                with self._training.outside_precision():
                    self._deliver(LocalResult(client_id, start.context, *outcome))
