"""The engine that chooses: fused where a plan can be, eager where it cannot."""

from collections.abc import Sequence
from typing import Any, Literal

from flfast.engines.agreement import agree
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.engines.local_training import Deliver, LocalResult
from flfast.engines.restrictions import check_allowed
from flfast.engines.site import Site
from flfast.options import Count
from flfast.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import read_weights


class AutoTraining:
    """Fused, unless a plan cannot be or trial steps disagree; see `LocalTraining`.

    Args:
        site: of this rank.
        decided: what `auto` stood for so far, by name; new decisions are added.
        stack: as of `FusedTraining`.
    """

    name = "auto"

    def __init__(
        self, site: Site, decided: dict[str, Any], *, stack: Count | Literal["auto"]
    ) -> None:
        self._site, self._decided = site, decided
        self._eager = EagerTraining(site)
        self._fused = FusedTraining(site, decided, stack=stack)
        self._reasons: dict[str, str | None] = {}

    def choose(self, plan: RoundPlan) -> str:
        """`fused`, or `eager` and the reason; see `LocalTraining`."""
        reason = self._reason(plan)
        return self._fused.name if reason is None else f"{self._eager.name} ({reason})"

    def train(
        self, clients: Sequence[int], broadcast: Tree, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """Train with the engine chosen for the plan; see `LocalTraining`."""
        chosen = self._fused if self._reason(plan) is None else self._eager
        chosen.train(clients, broadcast, plan, deliver)

    def _reason(self, plan: RoundPlan) -> str | None:
        """Why a plan runs eagerly; None if it runs fused."""
        key = f"{plan.phase} {plan.strategy} {plan.shard}"
        if key not in self._reasons:
            check_allowed(self._site.algorithm, self._site.joint, plan)
            known = self._decided.setdefault("engines", {})
            reason = self._fused.obstacle(plan)  # a resumed run may meet another one
            if reason is None:
                if key not in known:
                    known[key] = self._disagreement(plan)
                reason = known[key]
            self._reasons[key] = reason
            if reason is None:
                self._fused.check_stack(plan)
        return self._reasons[key]

    def _disagreement(self, plan: RoundPlan) -> str | None:
        """How two fused local steps of client 0 differ from eager ones, if they do."""
        low = plan.precision not in {"32-true", "64-true"}
        plan = plan._replace(local_steps=2, local_epochs=None)
        algorithm = self._site.algorithm
        broadcast = algorithm.broadcast(algorithm.server_state(read_weights(self._site.model)))
        results: list[LocalResult] = []
        self._eager.train([0], broadcast, plan, results.append)
        try:
            self._fused.train([0], broadcast, plan, results.append)
        except Exception as error:  # noqa: BLE001 - torch may raise anything while it traces
            return f"the model cannot be traced: {str(error).splitlines()[0]}"
        eager, fused = (result.done.weights for result in results)
        start = results[0].context.start
        same = all(agree(start[kind], eager[kind], fused[kind], low=low) for kind in eager)
        return None if same else "traced steps arrive at other weights"
