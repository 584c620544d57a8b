"""`engine=auto`: the fused engine where it can run a plan, otherwise the eager engine."""

from collections.abc import Sequence
from typing import Any, Literal

from flfast.algorithms.contract.downloads import Download
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.engines.local_training import Deliver, check_allowed
from flfast.engines.site import Site
from flfast.state.options import Count
from flfast.state.plan import RoundPlan


class AutoTraining:
    """Trains fused, unless an obstacle exists or trial steps disagree; see `LocalTraining`.

    `decided` has earlier decisions of `auto`, by name; new ones are added.
    """

    name = "auto"

    def __init__(
        self, site: Site, decided: dict[str, Any], *, stack: Count | Literal["auto"]
    ) -> None:
        self._site = site
        self._eager = EagerTraining(site)
        self._fused = FusedTraining(site, decided, stack=stack)
        self._reasons: dict[tuple[int, str, str], str | None] = {}

    def choose(self, plan: RoundPlan) -> str:
        """`fused`, or `eager` with the reason; see `LocalTraining`."""
        reason = self._reason(plan)
        self._fused.agree_on_stacks(plan)
        return self._fused.name if reason is None else f"{self._eager.name} ({reason})"

    def train(
        self, clients: Sequence[int], download: Download, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """Train with the engine chosen for the plan; see `LocalTraining`."""
        chosen = self._fused if self._reason(plan) is None else self._eager
        chosen.train(clients, download, plan, deliver)

    def _reason(self, plan: RoundPlan) -> str | None:
        """The reason to train eagerly; None if the plan trains fused."""
        key = (plan.phase, plan.strategy, plan.shard)
        if key not in self._reasons:
            check_allowed(
                self._site.algorithm, self._site.joint, plan, self._site.module.task_type
            )
            self._reasons[key] = self._fused.obstacle(plan)
            if self._reasons[key] is None:
                self._fused.check_stack(plan)
        return self._reasons[key]
