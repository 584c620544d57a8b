"""The fused engine: local training as compiled programs over data in memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Literal

import lightning as L
import torch

from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.world import ALONE, World
from flfast.engines.base import LocalResult
from flfast.engines.eager import EagerEngine
from flfast.engines.fused.graph.local_step import Clip, LocalStep
from flfast.engines.fused.graph.update_rules import local_optimizer
from flfast.engines.fused.obstacles import obstacle
from flfast.engines.fused.run.client_stack import StackProgram
from flfast.engines.fused.run.example_rows import Stored
from flfast.engines.fused.run.stack_schedule import grouped, local_steps
from flfast.engines.fused.run.stack_width import not_stackable
from flfast.engines.fused.run.training_state import ClientStart
from flfast.engines.restrictions import check_allowed
from flfast.engines.stages import stage_plan
from flfast.lit.cohort_module import CohortDataModule, CohortModule
from flfast.lit.local_module import LocalModule
from flfast.options import Count
from flfast.plan import RoundPlan
from flfast.state.store import ClientStates
from flfast.state.tree import Tree
from flfast.state.weights import read_weights


class FusedEngine(EagerEngine):
    """One `fit` per round; its training step is the local training of all clients of this rank.

    Args:
        module: as of `CohortEngine`, and so are the others.
        data: set up.
        make_trainer: plan -> a new Trainer for its devices and precision.
        states: what clients keep between rounds.
        world: the ranks of the run.
        stack: clients that are trained together in one program; `auto` is as many as are faster.
    """

    name = "fused"

    def __init__(
        self,
        module: LocalModule,
        data: FederatedDataModule,
        make_trainer: Callable[[RoundPlan], L.Trainer],
        states: ClientStates,
        world: World = ALONE,
        *,
        stack: Count | Literal["auto"],
    ) -> None:
        super().__init__(module, data, make_trainer, states, world)
        self._stack = stack

    @cached_property
    def _programs(self) -> dict[object, StackProgram]:
        return {}

    @cached_property
    def _stored(self) -> Stored:
        return Stored(self.data)

    def choose(self, plan: RoundPlan) -> str:
        """`fused`; see `Engine.choose`."""
        check_allowed(self.algorithm, self._joint, plan)
        reason = self._obstacle(plan)
        if reason is not None:
            raise ValueError(f"engine=fused: {reason}; use engine=auto or engine=eager")
        self._check_stack(plan)
        return self.name

    def _obstacle(self, plan: RoundPlan) -> str | None:
        return obstacle(plan, self.module, self.data, self.trainers.trainer(plan).trainer)

    def _check_stack(self, plan: RoundPlan) -> None:
        """Refuse a number of clients that cannot be trained together, before training."""
        if self._stack in {"auto", 1}:
            return
        reason = not_stackable(plan.batching)
        if reason is None:
            server = self.algorithm.server_state(read_weights(self.model))
            one = plan._replace(local_steps=1, local_epochs=None)
            try:
                FusedEngine.train_clients(
                    self, [0, 0], self.algorithm.broadcast(server), one, lambda result: None
                )
            except (RuntimeError, NotImplementedError) as error:
                reason = f"the model cannot be stacked: {str(error).splitlines()[0]}"
        if reason is not None:
            raise ValueError(
                f"engine.stack={self._stack}: {reason}; use engine.stack=auto or engine.stack=1"
            )

    def train_clients(
        self,
        clients: Sequence[int],
        broadcast: Tree,
        plan: RoundPlan,
        deliver: Callable[[LocalResult], None],
    ) -> None:
        """One `fit` over the clients; see `CohortEngine.train_clients`."""
        if not clients:
            return
        plans = [stage_plan(plan, stage) for stage in self.algorithm.stages]

        def begin(client_id: int) -> ClientStart:
            with _outside_precision(self.module.device):
                context, optimizer_state, data = self._begin(client_id, broadcast, plan)
            return ClientStart(context, optimizer_state, data)

        def train(batch: Sequence[int]) -> None:
            width, program = 1, self._program(plan)
            if len(batch) > 1 and not_stackable(plan.batching) is None:
                largest = max(batch, key=lambda k: len(self.data.train_clients.indices_of(k)))
                width = program.width(self._stack, lambda: begin(largest), plan)
            for stack in self._stacks(batch, plan, width):
                begun = [begin(client_id) for client_id in stack]
                outcomes = program.train(begun, plans)
                for client_id, own, outcome in zip(stack, begun, outcomes, strict=True):
                    with _outside_precision(self.module.device):
                        deliver(LocalResult(client_id, own.context, *outcome))

        module = CohortModule(self.module, train)
        self.trainers.trainer(plan).fit_cohort(module, CohortDataModule(clients))

    def _stacks(self, clients: Sequence[int], plan: RoundPlan, width: int) -> list[list[int]]:
        """Clients by stack; one after another as they are given where stacks are of one."""
        if width == 1:
            return [[client_id] for client_id in clients]
        batching = plan.batching._replace(limit=self.trainers.trainer(plan).train_limit)
        sizes = [
            local_steps(
                len(self.data.train_clients.indices_of(client_id)),
                batching,
                epochs=plan.local_epochs,
                steps=plan.local_steps,
            ).sizes
            for client_id in clients
        ]
        return [[clients[place] for place in stack] for stack in grouped(sizes, width)]

    def _program(self, plan: RoundPlan) -> StackProgram:
        """The program of a plan, made once the model is on the plan's device."""
        key = (plan.phase, plan.strategy, plan.precision, self.module.device)
        if key not in self._programs:
            trainer = self.trainers.trainer(plan)
            clip = Clip(trainer.clip_value, trainer.trainer.gradient_clip_algorithm == "value")
            params = list(self.module.params.values())
            optimizer = local_optimizer(self.module.make_optimizer(params, lr=plan.lr))
            steps = [
                LocalStep(
                    self.model,
                    self.algorithm,
                    optimizer,
                    trained=self.module.trained(stage, self._joint["params"]),
                    joint=self._joint,
                    clip=clip,
                )
                for stage in self.algorithm.stages
            ]
            widths = self.decided.setdefault("widths", {})
            own = widths.setdefault(" ".join(map(str, key)), {})
            self._programs[key] = StackProgram(steps, self._stored, own)
        return self._programs[key]


@contextmanager
def _outside_precision(device: torch.device) -> Iterator[None]:
    """What the Trainer's precision does to operators is meant for local training only."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_default_dtype(dtype)
