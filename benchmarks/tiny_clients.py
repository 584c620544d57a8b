"""What a user's LightningModule costs in a round of many tiny clients.

`python -m benchmarks.tiny_clients` times the fastest warm round of 1,000 clients with a
LightningModule whose step is cross-entropy, and with the same network as an `nn.Module` and
`task=classification`. The two take turns. Clients have 20 examples each, or 2 to 38. It takes
about two minutes.
"""

import argparse
import sys
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import flfast
from benchmarks.building import seed_torch

NUM_CLIENTS, MEAN_SIZE, NUM_CLASSES = 1000, 20, 10
SAME = 1e-3
"""Of the last losses, relative."""
WORDS = (
    *("batch_size=10", "optimizer=sgd", "optimizer.lr=0.05", "engine=fused", "split.val=0"),
    *("split.test=0", "eval_every=1000", "optimized_metric=train/loss", "callbacks=none"),
    *("logger=csv", "checkpoint.every=0", "trainer.devices=1", "trainer.accelerator=cpu"),
)


class Net(nn.Sequential):
    """A small perceptron for 64 numbers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, NUM_CLASSES))


class Module(L.LightningModule):
    """The same network with a step of its own, which logs its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Cross-entropy."""
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


def examples(*, ragged: bool) -> tuple[TensorDataset, np.ndarray]:
    """Examples of all clients, and the client of each."""
    rng = np.random.default_rng(0)
    sizes = np.full(NUM_CLIENTS, MEAN_SIZE)
    if ragged:
        sizes = rng.integers(2, 2 * MEAN_SIZE - 1, NUM_CLIENTS)
    owner = np.repeat(np.arange(NUM_CLIENTS), sizes)
    inputs = torch.from_numpy(rng.standard_normal((len(owner), 64), dtype=np.float32))
    return TensorDataset(inputs, inputs[:, :NUM_CLASSES].argmax(1)), owner


def seconds(kind: type[nn.Module], data: Any, rounds: int, **about: Any) -> tuple[float, float]:
    """Seconds of training in the fastest warm round, and the loss of the last one.

    Other programs disturb the fastest round least.
    """
    seed_torch(0, "weights")
    with TemporaryDirectory() as folder:
        words = (*WORDS, f"rounds={rounds + 1}")
        run = flfast.run(*words, folder=f"{folder}/run", data=data, model=kind(), **about)
        rows = run.history[run.history.index > 1]
        return float(rows["time/train_s"].min()), float(rows["train/loss"].iloc[-1])


def main() -> None:
    """Time both, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiny_clients", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--rounds", type=int, default=10, help="warm rounds of a run")
    args = parser.parse_args()
    lines = [
        "| clients | `nn.Module` ms | LightningModule ms | ratio | of pairs |",
        f"|{'---|' * 5}",
    ]
    for name, ragged in (("20 examples each", False), ("2 to 38 examples", True)):
        data, owner = examples(ragged=ragged)
        triple = (*data.tensors, torch.from_numpy(owner))
        pairs = []
        for _ in range(args.repeats):
            plain, loss = seconds(Net, triple, args.rounds)
            module, other = seconds(Module, data, args.rounds, client=owner)
            pairs.append((plain, module))
            if abs(loss - other) > SAME * loss:
                sys.exit(f"{name}: the losses are {loss:.6g} and {other:.6g}")
        ratios = sorted(module / plain for plain, module in pairs)
        first, second = (1000 * min(column) for column in zip(*pairs, strict=True))
        span = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        lines.append(f"| {name} | {first:.1f} | {second:.1f} | {second / first:.2f} | {span} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
