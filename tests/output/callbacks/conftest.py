"""A stand-in for a federation: real data, real weights, and a history as a real run leaves one."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flfast.datamodules.examples import ClientIndices, Examples
from flfast.datamodules.shifts.shift import NO_SHIFT, Drawn, Shift
from flfast.datamodules.splits import split_clients
from flfast.datamodules.transforms import BatchTransform


@dataclass
class Data:
    examples: Examples
    splits: dict[str, ClientIndices]
    central_test: np.ndarray
    num_clients: int
    num_classes: int
    owner: np.ndarray
    digest: str
    shift: Shift = NO_SHIFT
    drawn: Drawn = field(default_factory=dict)
    client_names: tuple[str, ...] = ()


@dataclass
class StandIn:
    data: Data
    run_dir: Path
    rounds: int = 40
    topology: None = None
    title: str = "fedavg · digits · dirichlet(alpha=0.5) · mlp · 10 clients"
    history: list[dict[str, Any]] = field(default_factory=list)

    def weights(self):
        return {"linear.weight": torch.ones(2, 3), "norm.num_batches_tracked": torch.tensor(4)}


def make_data(*, num_clients=10, num_classes=10, num_examples=1797, alpha=0.5):
    rng = np.random.default_rng(3)
    labels = rng.integers(num_classes, size=num_examples)
    shares = rng.dirichlet(np.full(num_clients, alpha), size=num_classes)
    owner = np.empty(num_examples, dtype=np.int64)
    for label in range(num_classes):
        mask = labels == label
        owner[mask] = rng.choice(num_clients, size=mask.sum(), p=shares[label])
    owner[:num_clients] = np.arange(num_clients)
    pool = np.arange(num_examples * 5 // 6)
    splits = split_clients(
        pool,
        owner[pool],
        num_clients=num_clients,
        fractions={"test": 0.2, "val": 0.1},
        place=rng.random(len(pool)),
    )
    examples = Examples(
        inputs=torch.zeros(num_examples, 1),
        targets=torch.from_numpy(labels),
        num_classes=num_classes,
        input_shape=(1,),
        transform=BatchTransform(),
    )
    central = np.arange(len(pool), num_examples)
    return Data(examples, splits, central, num_clients, num_classes, owner[pool], "abc")


VIEWS = ("global", "local", "personal", "val")


def make_history(*, rounds=40, eval_every=2, views=VIEWS, seed=0, clock=False):
    rng = np.random.default_rng(seed)
    best = {"global": 0.93, "local": 0.91, "personal": 0.955, "val": 0.92, "personal_val": 0.96}
    history = []
    for round_idx in range(rounds + 1):
        learnt = 1 - np.exp(-round_idx / 7)
        row: dict[str, Any] = {"round": round_idx}
        if round_idx:
            row["train/loss"] = float(2.2 * np.exp(-round_idx / 5) + 0.12 + rng.normal(0, 0.02))
            row |= {"time/train_s": 0.21, "train/samples_per_s": 7000.0}
            row |= {"comm/up_bytes": 2_100_000, "comm/down_bytes": 2_100_000}
            row |= {"cohort/clients": 10, "cohort/dropped": 0, "cohort/rejected": 0}
            if clock:
                row |= {"clock/seconds": 95.5 * round_idx, "clock/staleness": 1.25}
                row |= {"clock/staleness_max": 3, "clock/in_flight": 12}
            row |= {"plan/strategy": "single", "plan/precision": "32-true", "plan/lr": 0.1}
        if round_idx % eval_every == 0 or round_idx == rounds:
            row["time/eval_s"] = 0.03
            for view in views:
                accuracy = 0.1 + (best[view] - 0.1) * learnt + rng.normal(0, 0.006)
                row[f"{view}/loss"] = float(2.1 * (1 - learnt) + 0.25 + rng.normal(0, 0.02))
                row[f"{view}/accuracy"] = float(accuracy)
                row[f"{view}/auc"] = float(0.5 + 0.49 * learnt)
                if view != "global":
                    row[f"{view}/accuracy_std"] = float(0.12 - 0.06 * learnt)
                    row[f"{view}/accuracy_worst10"] = float(accuracy - 0.09 - 0.03 * learnt)
        history.append(row)
    return history


@pytest.fixture
def history():
    return make_history


@pytest.fixture
def federation(tmp_path):
    def build(**data_options):
        data = make_data(**data_options)
        return StandIn(data=data, run_dir=tmp_path, history=make_history())

    return build
