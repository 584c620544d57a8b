"""pfl-research's simulation with `torchrun`: one process per core, clients dealt by size.

Its processes share the evaluation, which measures loss and accuracy of all test examples.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.building import build_model, seed_torch
from benchmarks.peers.timing import Rounds, arguments, show, silent
from benchmarks.population import EVAL_BATCH, load
from benchmarks.workload import Workload


class Classifier(nn.Module):
    """The workload's model, with the two functions that pfl-research calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of a batch."""
        self.train()
        return F.cross_entropy(self.model(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Sums over a batch, each with its number of examples."""
        self.eval()
        logits, size = self.model(inputs), len(targets)
        loss = F.cross_entropy(logits, targets, reduction="sum").item()
        correct = (logits.argmax(dim=1) == targets).sum().item()
        return {"loss": Weighted(loss, size), "accuracy": Weighted(correct, size)}


class Clock(TrainingProcessCallback[Any]):
    """Calls a function after each round, in its place among the callbacks."""

    def __init__(self, note: Any, seen: dict[str, float] | None = None) -> None:
        self.note, self.seen = note, seen

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Row 0 is evaluated; round 1 begins."""
        if self.seen is not None:
            self.note.__self__.started()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round has come to this callback."""
        self.note()
        if self.seen is not None:
            simple = aggregate_metrics.to_simple_dict()
            for name in ("loss", "accuracy"):
                key = f"Central val | {name}"
                self.seen[name] = simple.get(key, float("nan"))
        return False, Metrics()


def federation(workload: Workload, data: Any) -> FederatedDataset:
    """The clients, each with the examples that it uses; large ones are spread over processes."""
    clients = {}
    for client_id in range(workload.num_clients):
        inputs, targets = data.client(client_id)
        used = workload.used(len(targets))
        clients[client_id] = [inputs[:used], targets[:used]]
    sampler = get_user_sampler("minimize_reuse", list(clients))
    sizes = {client_id: len(raw[1]) for client_id, raw in clients.items()}
    return FederatedDataset(lambda key: Dataset(clients[key], user_id=key), sampler, sizes)


def main() -> None:
    """Run a workload's rounds; rank 0 writes one JSON object on standard output."""
    options = arguments()
    workload: Workload = options.workload
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002, TID251 - pfl-research draws its cohorts from it
    data = load(workload, "cpu")
    seed_torch(0, "initial weights")
    module = Classifier(build_model(workload))
    model = PyTorchModel(
        module,
        partial(
            torch.optim.SGD,
            momentum=workload.momentum,
            weight_decay=workload.weight_decay,
            fused=True,
        ),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    test = Dataset([torch.cat(part) for part in zip(*data.test, strict=True)])
    rounds, last = Rounds(), {"loss": float("nan"), "accuracy": float("nan")}
    evaluation = CentralEvaluationCallback(
        test, model_eval_params=NNEvalHyperParams(local_batch_size=EVAL_BATCH["cpu"])
    )
    size = None if workload.batch_size < 0 else workload.batch_size
    with silent():  # it prints its metrics
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=options.rounds,
                evaluation_frequency=options.rounds + 1,
                train_cohort_size=workload.cohort,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(federation(workload, data), None),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=workload.local_epochs,
                local_learning_rate=workload.lr,
                local_batch_size=size,
            ),
            callbacks=[Clock(rounds.trained), evaluation, Clock(rounds.evaluated, last)],
        )
    if get_default_framework_module().distributed.global_rank == 0:
        show(workload, rounds, loss=last["loss"], accuracy=last["accuracy"])


if __name__ == "__main__":
    main()
