"""The engine that chooses: fused where it can be, eager where it must be."""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from flfast.lit.engines.cohort import LocalResult
from flfast.lit.engines.eager import EagerEngine
from flfast.lit.engines.fused import FusedEngine
from flfast.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import read_weights


class AutoEngine(FusedEngine):
    """Fused, unless a plan cannot be or a trial step disagrees with the eager one."""

    name = "auto"

    @cached_property
    def _reasons(self) -> dict[tuple[int, str, str], str | None]:
        return {}

    def choose(self, plan: RoundPlan) -> str:
        """`fused`, or `eager` and why; see `Engine.choose`."""
        key = (plan.phase, plan.strategy, plan.shard)
        if key not in self._reasons:
            self._reasons[key] = self._obstacle(plan) or self._disagreement(plan)
        reason = self._reasons[key]
        return "fused" if reason is None else f"eager ({reason})"

    def train_clients(
        self,
        clients: Sequence[int],
        broadcast: Tree,
        plan: RoundPlan,
        deliver: Callable[[LocalResult], None],
    ) -> None:
        """The way that `choose` says."""
        fused = self.choose(plan) == "fused"
        engine = FusedEngine if fused else EagerEngine
        engine.train_clients(self, clients, broadcast, plan, deliver)

    def _disagreement(self, plan: RoundPlan) -> str | None:
        """What one local step of client 0 says against the program, if anything."""
        plan = plan._replace(local_steps=1, local_epochs=None)
        initial = read_weights(self.model)
        broadcast = self.algorithm.broadcast(self.algorithm.server_state(initial))
        results: list[LocalResult] = []
        try:
            for engine in (EagerEngine, FusedEngine):
                engine.train_clients(self, [0], broadcast, plan, results.append)
        except Exception as error:  # noqa: BLE001 - whatever torch says of a model it cannot trace
            return f"the model cannot be traced: {str(error).splitlines()[0]}"
        eager, fused = (result.done.weights for result in results)
        for kind, leaves in eager.items():
            for name, leaf in leaves.items():
                if not _same_step(initial[kind][name], leaf, fused[kind][name]):
                    return f"a traced step changes {name} in another way"
        return None


def _same_step(before: torch.Tensor, eager: torch.Tensor, fused: torch.Tensor) -> bool:
    """Whether two steps agree but for rounding, which is all of a step in low precision."""
    if not eager.is_floating_point():
        return torch.equal(eager, fused)
    rounding = 8 * torch.finfo(eager.dtype).eps * eager.abs().max()
    return bool((fused - eager).abs().max() <= 0.1 * (eager - before).abs().max() + rounding)
