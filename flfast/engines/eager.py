"""The eager engine: client by client, the plain Lightning way. The reference for every other."""

from collections.abc import Callable, Sequence

from flfast.algorithms.algorithm import Finished
from flfast.distributed.world import average_buffers, sum_over_ranks
from flfast.engines.base import CohortEngine, LocalResult
from flfast.engines.restrictions import check_allowed
from flfast.engines.stages import stage_plan
from flfast.plan import RoundPlan
from flfast.state.tree import Tree, merge
from flfast.state.weights import read_weights


class EagerEngine(CohortEngine):
    """One reused Trainer, one `fit` per client, one `test` per evaluation pass."""

    name = "eager"

    def choose(self, plan: RoundPlan) -> str:
        """`eager`; see `Engine.choose`."""
        check_allowed(self.algorithm, self._joint, plan)
        return "eager"

    def train_clients(
        self,
        clients: Sequence[int],
        broadcast: Tree,
        plan: RoundPlan,
        deliver: Callable[[LocalResult], None],
    ) -> None:
        """Client after client, a `fit` each."""
        for client_id in clients:
            deliver(self._train_client(client_id, broadcast, plan))

    def _train_client(self, client_id: int, broadcast: Tree, plan: RoundPlan) -> LocalResult:
        trainer, module = self.trainers.trainer(plan), self.trainers.module(plan)
        context, optimizer_state, data = self._begin(client_id, broadcast, plan)
        module.begin(context, optimizer_state)
        num_steps, num_examples = 0, 0
        optimizer: Tree = {}
        for stage in self.algorithm.stages:
            module.begin_stage(stage)
            num_steps += trainer.fit(module, data, stage_plan(plan, stage))
            num_examples = max(num_examples, module.num_examples)
            optimizer |= module.read_optimizer_state() if self.algorithm.optimizer else {}
        module.num_examples = num_examples
        module.end()
        if self._together(plan):
            module.add_ranks(lambda values: sum_over_ranks(self.world, values))
            for part in (module.model, module.joint):  # BatchNorm saw each rank's own parts
                average_buffers(self.world, part)
        done = Finished(
            weights=merge(read_weights(module.model), module.joint.read()),
            num_examples=min(module.num_examples, len(data.indices)),
            num_steps=num_steps,
            optimizer=optimizer,
        )
        return LocalResult(client_id, context, done, module.num_seen, float(module.loss_sum))
