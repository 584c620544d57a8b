"""The engine that chooses: fused where it can be, eager where it must be."""

from collections.abc import Callable, Sequence
from functools import cached_property

from flfast.engines.agreement import agree
from flfast.engines.base import LocalResult
from flfast.engines.eager import EagerEngine
from flfast.engines.fused.fused import FusedEngine
from flfast.engines.restrictions import check_allowed
from flfast.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import read_weights


class AutoEngine(FusedEngine):
    """Fused, unless a plan cannot be or trial steps disagree with the eager ones."""

    name = "auto"

    @cached_property
    def _reasons(self) -> dict[str, str | None]:
        return {}

    def choose(self, plan: RoundPlan) -> str:
        """`fused`, or `eager` and why; see `Engine.choose`."""
        check_allowed(self.algorithm, self._joint, plan)
        key = f"{plan.phase} {plan.strategy} {plan.shard}"
        if key not in self._reasons:
            known = self.decided.setdefault("engines", {})
            reason = self._obstacle(plan)  # may be another where a run is resumed
            if reason is None:
                if key not in known:
                    known[key] = self._disagreement(plan)
                reason = known[key]
            self._reasons[key] = reason
        reason = self._reasons[key]
        if reason is None:
            self._check_stack(plan)
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
        """What two local steps of client 0 say against the program, if anything."""
        low = plan.precision not in {"32-true", "64-true"}
        plan = plan._replace(local_steps=2, local_epochs=None)
        server = self.algorithm.server_state(read_weights(self.model))
        broadcast = self.algorithm.broadcast(server)
        results: list[LocalResult] = []
        EagerEngine.train_clients(self, [0], broadcast, plan, results.append)
        try:
            FusedEngine.train_clients(self, [0], broadcast, plan, results.append)
        except Exception as error:  # noqa: BLE001 - whatever torch says of a model it cannot trace
            return f"the model cannot be traced: {str(error).splitlines()[0]}"
        eager, fused = (result.done.weights for result in results)
        start = results[0].context.start
        same = all(agree(start[kind], eager[kind], fused[kind], low=low) for kind in eager)
        return None if same else "traced steps arrive at other weights"
