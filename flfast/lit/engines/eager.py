"""The eager engine: client by client, the plain Lightning way. The reference for every other."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from flfast.algorithms.algorithm import Algorithm, Context, Finished
from flfast.datamodules.evaluation import EvaluationDataModule
from flfast.datamodules.federated import ClientDataModule, FederatedDataModule
from flfast.lit.batchnorm import recalibrate
from flfast.lit.engines.engine import ClientReport, Trained
from flfast.lit.metrics import GroupMetrics, Predictions, group_metrics
from flfast.lit.module import LocalModule
from flfast.plan import RoundPlan
from flfast.randomness import generator, seed_torch
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, WeightedMean, all_finite, num_bytes
from flfast.state.weights import read_weights, write_weights


class EagerEngine:
    """One reused Trainer, one `fit` per client, one `test` per evaluation pass.

    Args:
        module: model, algorithm and optimizer.
        data: set up.
        make_trainer: () -> the Trainer.
        states: what clients keep between rounds.
    """

    name = "eager"

    def __init__(
        self,
        module: LocalModule,
        data: FederatedDataModule,
        make_trainer: Callable[[], L.Trainer],
        states: ClientStates,
    ) -> None:
        self.module, self.data, self.states = module, data, states
        self.trainer = cast(Any, make_trainer())  # its attributes are set dynamically
        # Lightning's profiler reports at the end of every fit; one report a run is meant.
        self._describe = self.trainer.profiler.describe
        self._limit = self.trainer.limit_train_batches
        # What Lightning calls a callback's state belongs to one fit: EarlyStopping's patience.
        self._callback_states = [
            (callback, deepcopy(callback.state_dict())) for callback in self.trainer.callbacks
        ]
        self.trainer.profiler.describe = lambda: None
        personal = self.algorithm.personal is not None
        self._passes = []
        if self.algorithm.evaluate_server:
            self._passes.append(EvaluationDataModule(data, personal=False, with_val=not personal))
        if personal:
            self._passes.append(EvaluationDataModule(data, personal=True, with_val=True))
        self.evaluation_sets = {name for evaluation in self._passes for name in evaluation.sets}

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that the module trains with."""
        return self.module.algorithm

    @property
    def model(self) -> nn.Module:
        """The model that clients take turns in."""
        return self.module.model

    def train(
        self,
        server: Tree,
        cohort: Sequence[int],
        plan: RoundPlan,
        *,
        on_client: Callable[[ClientReport], None],
    ) -> Trained:
        """Train the cohort one client after another; see `Engine.train`."""
        broadcast = self.algorithm.broadcast(server)
        mean, reports = WeightedMean(), []
        for client_id in cohort:
            context = self._context(client_id, broadcast, plan.lr)
            done = self._fit(client_id, context, plan)
            upload, state = self.algorithm.finish(done, context)
            rejected = not (all_finite(upload) and all_finite(state))
            if not rejected:
                mean.add(upload, self.algorithm.weight(done.num_examples))
                self.states.put(client_id, state)
            report = ClientReport(
                client_id=client_id,
                num_examples=done.num_examples,
                num_seen=self.module.num_seen,
                num_steps=done.num_steps,
                loss=float(self.module.loss_sum) / max(self.module.num_seen, 1),
                up_bytes=num_bytes(upload),
                rejected=rejected,
            )
            reports.append(report)
            on_client(report)
        return Trained(mean.result() if mean.weight else None, reports)

    def _context(self, client_id: int, broadcast: Tree, lr: float) -> Context:
        client = self._client(client_id, broadcast)
        return Context(broadcast, client, self.algorithm.start(broadcast, client), lr)

    def _client(self, client_id: int, broadcast: Tree) -> Tree:
        state = self.states.get(client_id)
        return self.algorithm.client_state(broadcast) if state is None else state

    def _fit(self, client_id: int, context: Context, plan: RoundPlan) -> Finished:
        batching = plan.batching._replace(limit=self._limit)
        data = self.data.client(client_id, batching=batching, round_idx=plan.round_idx)
        stateful = self.algorithm.optimizer
        optimizer = stateful(context.server, context.client) if stateful else {}
        self.module.begin(context, optimizer)
        seed_torch(self.data.seed, "local training", plan.round_idx, client_id)
        self._rewind(data, plan)
        self.trainer.fit(self.module, datamodule=data)
        return Finished(
            weights=read_weights(self.model),
            num_examples=min(self.module.num_examples, len(data.indices)),
            num_steps=self.trainer.global_step,
            optimizer=self.module.read_optimizer_state() if stateful else {},
        )

    def _rewind(self, data: ClientDataModule, plan: RoundPlan) -> None:
        """Make the reused Trainer start at epoch 0 and step 0, like a new one."""
        loop = self.trainer.fit_loop
        loop.epoch_progress.reset()
        loop.epoch_loop.automatic_optimization.optim_progress.reset()
        loop.epoch_loop.batch_progress.reset()
        self.trainer.accumulate_grad_batches = data.epoch.accumulate
        # The loader's batches are cut already, to whole local steps.
        self.trainer.limit_train_batches = 1.0
        for callback, state in self._callback_states:
            if state:
                callback.load_state_dict(deepcopy(state))
        if self.trainer.fast_dev_run:
            return  # Lightning has set its own limits
        loop.max_epochs = plan.local_epochs or -1
        loop.epoch_loop.max_steps = plan.local_steps or -1

    def evaluate(self, server: Tree) -> dict[str, GroupMetrics]:
        """Predict every evaluation example once; see `Engine.evaluate`."""
        broadcast = self.algorithm.broadcast(server)
        results = {}
        for data in self._passes:
            if not len(data.indices):
                continue
            write_weights(self.model, server)
            self.module.personal = self._personal(broadcast) if data.personal else None
            self.trainer.test(self.module, datamodule=data, verbose=False)
            predictions = _on_host_if_needed(self.module.predictions.collect())
            results.update(_grouped(predictions, data))
        return results

    def _personal(self, broadcast: Tree) -> Callable[[int], Tree]:
        personal = self.algorithm.personal
        assert personal is not None
        return lambda client_id: personal(broadcast, self._client(client_id, broadcast))

    def recalibrate(self, server: Tree, cohort: Sequence[int], plan: RoundPlan) -> Tree:
        """Measure BatchNorm statistics in batches mixed over the cohort; see `Engine`."""
        device = self.trainer.strategy.root_device
        write_weights(self.model, server)
        self.model.to(device)
        mixed = np.concatenate([self.data.train_clients.of(k) for k in cohort])
        mixed = generator(self.data.seed, "recalibrate", plan.round_idx).permutation(mixed)
        loader = self.data.eval_loader(mixed)

        def inputs() -> Iterator[Tensor]:
            for batch in loader:
                if len(batch.targets) > 1 or len(mixed) == 1:  # one example has no variance
                    dtype = next(self.model.parameters()).dtype
                    yield self.data.examples.transform(batch.inputs.to(device), dtype=dtype)

        with self.trainer.precision_plugin.forward_context():
            recalibrate(self.model, inputs())
        return {**server, "buffers": read_weights(self.model.cpu())["buffers"]}

    def close(self) -> None:
        """Let the profiler describe the whole run."""
        self._describe()


def _on_host_if_needed(predictions: Predictions) -> Predictions:
    # Apple's GPUs have no float64, in which sums and ranks are exact.
    if predictions.loss.device.type != "mps":
        return predictions
    return Predictions(*(tensor.cpu() for tensor in predictions))


def _grouped(predictions: Predictions, data: EvaluationDataModule) -> dict[str, GroupMetrics]:
    device = predictions.loss.device
    results: dict[str, Any] = {}
    for name, part in data.sets.items():
        # trainer.limit_test_batches and fast_dev_run predict less than all.
        kept = part.positions < len(predictions.loss)
        positions = torch.from_numpy(part.positions[kept]).to(device)
        group = torch.from_numpy(part.group[kept]).to(device)
        if len(positions):
            chosen = Predictions(*(tensor[positions] for tensor in predictions))
            results[name] = group_metrics(chosen, group, part.num_groups)
    return results
