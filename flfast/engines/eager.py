"""The eager engine: one Lightning `fit` per client and stage. It is the reference for the others.

A client's update: `Site.start` gives its context and data, `LocalModule` trains, and the weights
are read back into a `LocalResult`, which `deliver` takes: a `Delivery`.
"""

from collections.abc import Callable, Sequence

from flfast.algorithms.contract import Finished, Measure
from flfast.algorithms.contract.downloads import Download
from flfast.channel.sent import LocalResult
from flfast.distributed.world import average_buffers, sum_over_ranks
from flfast.engines.local_training import Deliver, check_allowed
from flfast.engines.site import Site
from flfast.state.optimizer_state import read_optimizer_state
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree


class EagerTraining:
    """Trains clients one by one with one reused Trainer; see `LocalTraining`.

    `perturb` changes the weights that every client starts from, for trials.
    """

    name = "eager"

    def __init__(self, site: Site, *, perturb: Callable[[Tree], Tree] | None = None) -> None:
        self._site, self._perturb = site, perturb

    def choose(self, plan: RoundPlan) -> str:
        """`eager`; see `LocalTraining`."""
        check_allowed(self._site.algorithm, self._site.joint, plan, self._site.module.task_type)
        return self.name

    def train(
        self, clients: Sequence[int], download: Download, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """Train client by client; see `LocalTraining`."""
        for client_id in clients:
            deliver([self._train_client(client_id, download, plan)])

    def _train_client(self, client_id: int, download: Download, plan: RoundPlan) -> LocalResult:
        site = self._site
        trainer, module = site.trainers.trainer(plan), site.trainers.module(plan)
        start = site.start(client_id, download, plan)
        start.seed_torch(others=True)
        context, data = start.context, start.data
        if self._perturb is not None:
            context = context._replace(start=self._perturb(context.start))
        module.begin(context, start.optimizer_state)
        num_steps, num_examples = 0, 0
        optimizer: Tree = {}
        stages_before = 0
        for stage in site.algorithm.stages:
            if isinstance(stage, Measure):
                context = site.measured(stage, module.read(), client_id, context, plan)
                continue
            module.begin_stage(stage, context)
            seen, stages_before = data.subset(stage.share, stages_before), stages_before + 1
            num_steps += trainer.fit(module, seen, start.stage_plan(stage))
            num_examples = max(num_examples, module.num_examples)
            if site.algorithm.kit.optimizer:
                optimizer |= read_optimizer_state(module.optimizer, module.all_params)
        module.end(num_examples if site.algorithm.training_stages else len(data.indices))
        if site.divides_batches(plan):
            module.add_ranks(lambda values: sum_over_ranks(site.world, values))
            # Each rank's BatchNorm saw a part of every batch.
            for part in (module.model, module.joint):
                average_buffers(site.world, part)
        num = min(module.num_examples, len(data.indices))
        done = Finished(
            weights=module.read(), num_examples=num, num_steps=num_steps, optimizer=optimizer
        )
        num_seen, loss_sum = int(module.num_seen), float(module.loss_sum)
        return LocalResult(client_id, context, done, num_seen, loss_sum, module.read_logged())
