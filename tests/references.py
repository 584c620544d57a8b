"""Softmax regression of clients in NumPy (float64), to write down the equations of papers.

It uses nothing of the package except the order of a client's examples.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from flfast.datamodules.federated import FederatedDataModule
from flfast.state.plan import Batching


@dataclass
class Reference:
    """Clients with parameters [P]: the weight [C, D] row by row, then the bias [C].

    Attributes:
        data: set up, with inputs [N, D].
        batch_size: of local steps; -1 is the full batch.
        epochs: local epochs.
        lr: local learning rate.
    """

    data: FederatedDataModule
    batch_size: int
    epochs: int
    lr: float

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    def size(self, k: int) -> int:
        """Training examples of a client."""
        return len(self.data.train_clients.indices_of(k))

    def labels(self, k: int) -> list[int]:
        """Classes of a client's training examples."""
        return self.data.examples.targets[self.data.train_clients.indices_of(k)].tolist()

    def steps(self, k: int, round_idx: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """(inputs [b, D], targets [b]) of every local step in a round."""
        client = self.data.client(k, batching=Batching(self.batch_size), round_idx=round_idx)
        size = self.size(k) if self.batch_size == -1 else self.batch_size
        inputs = self.data.examples.inputs.double().numpy()
        targets = self.data.examples.targets.numpy()
        return [
            (inputs[order[i : i + size]], targets[order[i : i + size]])
            for order in (client.next_order() for _ in range(self.epochs))
            for i in range(0, len(order), size)
        ]

    def gradient(self, w, step, *, factors=1.0, margins=0.0) -> np.ndarray:
        """Gradient [P] of the mean cross-entropy over a step's examples.

        Logits are multiplied by factors [C], then margins [C] are subtracted.
        """
        inputs, targets = step
        num_classes = self.data.num_classes
        weight, bias = w[:-num_classes].reshape(num_classes, -1), w[-num_classes:]
        logits = (inputs @ weight.T + bias) * factors - margins
        exps = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (exps / exps.sum(axis=1, keepdims=True) - np.eye(num_classes)[targets]) * factors
        return np.concatenate([(error.T @ inputs).ravel(), error.sum(axis=0)]) / len(targets)

    def sgd(
        self, k, round_idx, w, *, momentum=0.0, nesterov=False, change=None, gradient=None
    ) -> np.ndarray:
        """Local training from w; `change(w)` is added to the gradients, of `gradient(w, step)`."""
        w, velocity = w.copy(), np.zeros_like(w)
        for step in self.steps(k, round_idx):
            found = (gradient or self.gradient)(w, step) + (0.0 if change is None else change(w))
            velocity = momentum * velocity + found
            w -= self.lr * (found + momentum * velocity if nesterov else velocity)
        return w

    def mean(self, models):
        """Mean of models by client, weighted by training examples: vectors, or dicts of leaves."""
        total, first = sum(map(self.size, models)), next(iter(models.values()))
        if isinstance(first, dict):
            return {n: self.mean({k: w[n] for k, w in models.items()}) for n in first}
        return sum(self.size(k) * w for k, w in models.items()) / total


def uphill(reference, w, step, rho):
    """Gradient [P] at a point uphill, at a distance rho."""
    g = reference.gradient(w, step)
    return reference.gradient(w + rho * g / np.linalg.norm(g), step)


def control_variates(server_lr, gradient_of=None):
    """Equations of SCAFFOLD, option II, with another `gradient_of(reference)(k, x)`."""

    def equations(reference, x, cohorts):
        c, own = np.zeros_like(x), np.zeros((reference.num_clients, len(x)))
        found = gradient_of(reference) if gradient_of else lambda k, x: None
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                moves, changes = [], []
                for k in cohort:
                    drift = c - own[k]
                    y = reference.sgd(
                        k, round_idx, x, change=lambda w, d=drift: d, gradient=found(k, x)
                    )
                    num_steps = len(reference.steps(k, round_idx))
                    new = own[k] - c + (x - y) / (num_steps * reference.lr)
                    moves.append(y - x)
                    changes.append(new - own[k])
                    own[k] = new
                x = x + server_lr * np.mean(moves, axis=0)
                c = c + np.sum(changes, axis=0) / reference.num_clients
            yield x

    return equations


def dynamic_regulariser(alpha, gradient_of=None):
    """Equations of FedDyn by gradient descent, with another `gradient_of(reference)(k, w)`."""

    def equations(reference, w, cohorts):
        duals, h = np.zeros((reference.num_clients, len(w))), np.zeros_like(w)
        found = gradient_of(reference) if gradient_of else lambda k, w: None
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                models = []
                for k in cohort:
                    start, dual = w, duals[k].copy()
                    models.append(
                        reference.sgd(
                            *(k, round_idx, w),
                            change=lambda v, s=start, d=dual: alpha * (v - s) - d,
                            gradient=found(k, w),
                        )
                    )
                    duals[k] -= alpha * (models[-1] - w)
                h = h - alpha / reference.num_clients * sum(model - w for model in models)
                w = sum(models) / len(models) - h / alpha
            yield w

    return equations


def averaged(gradient):
    """Equations of FedAvg with another `gradient(reference, k, w, step)` of clients k."""

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            done = {}
            for k in cohort:
                own = partial(gradient, reference, k)
                done[k] = reference.sgd(k, round_idx, w, gradient=own)
            w = reference.mean(done) if done else w
            yield w

    return equations


def initial(num_features: int, num_classes: int) -> nn.Linear:
    """The model of `Reference`, in double precision."""
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Linear(num_features, num_classes).double()


def vector(weights: dict) -> np.ndarray:
    """The parameters [P] of `initial`, from a flat state dict."""
    return np.concatenate([weights["weight"].numpy().ravel(), weights["bias"].numpy()])
