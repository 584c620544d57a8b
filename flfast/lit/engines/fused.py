"""The fused engine: local training as compiled programs over data in memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch

from flfast.lit.cohort import CohortDataModule, CohortModule
from flfast.lit.engines.cohort import LocalResult
from flfast.lit.engines.eager import EagerEngine
from flfast.lit.fused.client import ClientProgram
from flfast.lit.fused.limits import obstacle
from flfast.lit.fused.optimizers import local_optimizer
from flfast.lit.fused.step import Clip, LocalStep
from flfast.plan import RoundPlan
from flfast.state.tree import Tree


class FusedEngine(EagerEngine):
    """One `fit` per round; its training step is the local training of all clients of this rank."""

    name = "fused"

    @cached_property
    def _programs(self) -> dict[object, ClientProgram]:
        return {}

    def choose(self, plan: RoundPlan) -> str:
        """`fused`; see `Engine.choose`."""
        reason = self._obstacle(plan)
        if reason is not None:
            raise ValueError(f"engine=fused: {reason}; use engine=auto or engine=eager")
        return self.name

    def _obstacle(self, plan: RoundPlan) -> str | None:
        return obstacle(plan, self.module, self.data, self.trainers.trainer(plan).trainer)

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

        def train(batch: Sequence[int]) -> None:
            program = self._program(plan)
            for client_id in batch:
                with _outside_precision(self.module.device):
                    context, optimizer_state, data = self._begin(client_id, broadcast, plan)
                outcome = program.train(data, context, optimizer_state, plan)
                with _outside_precision(self.module.device):
                    deliver(LocalResult(client_id, context, *outcome))

        module = CohortModule(self.module, train)
        self.trainers.trainer(plan).fit_cohort(module, CohortDataModule(clients))

    def _program(self, plan: RoundPlan) -> ClientProgram:
        """The program of a plan, made once the model is on the plan's device."""
        key = (plan.phase, plan.strategy, plan.precision, self.module.device)
        if key not in self._programs:
            trainer = self.trainers.trainer(plan)
            clip = Clip(trainer.clip_value, trainer.trainer.gradient_clip_algorithm == "value")
            trained = [p for p in self.module.params.values() if p.requires_grad]
            optimizer = local_optimizer(self.module.make_optimizer(trained, lr=plan.lr))
            step = LocalStep(self.model, self.algorithm, optimizer, clip)
            self._programs[key] = ClientProgram(step)
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
