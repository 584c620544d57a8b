"""The yardstick: FedAvg as one would write it by hand for speed, in plain PyTorch.

All data lie in memory on the device, one model serves all clients, torch.optim.SGD (fused) steps
it, and uploads are added to a running mean. No Lightning, no data loader, no copy that the
arithmetic does not need. An epoch gathers a client's examples once in random order and slices
them.

    python -m benchmarks.plain WORKLOAD.json --threads 1 --rounds 3 --device cpu

writes one JSON object: seconds of every round, and what was computed in them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.building import build_model, load_examples, read_workload
from benchmarks.workload import Workload
from flfast.randomness import generator, seed_torch

# Fastest of 50 to 2,000 for the models here: on a CPU a batch's activations stay in the cache.
EVAL_BATCH = {"cpu": 250, "cuda": 4096}


@dataclass(frozen=True)
class Population:
    """All data on the device. N training examples, M test examples, K clients.

    Attributes:
        inputs: [N, ...], client after client.
        targets: int64 [N].
        offsets: K + 1 positions; client k has [offsets[k], offsets[k + 1]).
        test: batches of the M test examples.
    """

    inputs: Tensor
    targets: Tensor
    offsets: list[int]
    test: list[tuple[Tensor, Tensor]]

    def client(self, client_id: int) -> tuple[Tensor, Tensor]:
        """A client's examples, views."""
        own = slice(self.offsets[client_id], self.offsets[client_id + 1])
        return self.inputs[own], self.targets[own]


def load(workload: Workload, device: str) -> Population:
    """The workload's population."""
    examples = load_examples(workload)
    assert isinstance(examples.inputs, Tensor)
    assert examples.is_test is not None
    assert examples.owner is not None
    pool = np.flatnonzero(~examples.is_test)
    owner = examples.owner[pool]
    order = torch.from_numpy(pool[np.argsort(owner, kind="stable")])
    held_out = torch.from_numpy(np.flatnonzero(examples.is_test))
    test_x, test_y = examples.inputs[held_out].to(device), examples.targets[held_out].to(device)
    sizes = np.bincount(owner, minlength=workload.num_clients)
    return Population(
        inputs=examples.inputs[order].to(device),
        targets=examples.targets[order].to(device),
        offsets=[0, *np.cumsum(sizes).tolist()],
        test=list(
            zip(test_x.split(EVAL_BATCH[device]), test_y.split(EVAL_BATCH[device]), strict=True)
        ),
    )


class PlainLoop:
    """FedAvg over a population.

    Args:
        workload: what to run.
        device: `cpu` or `cuda`.

    Attributes:
        steps: local steps so far.
        samples: examples trained on so far.
        loss, accuracy: of the server's model on the test examples, when last evaluated.
    """

    def __init__(self, workload: Workload, device: str) -> None:
        self.workload, self.device = workload, device
        self.data = load(workload, device)
        seed_torch(0, "initial weights")
        self.model = build_model(workload).to(device)
        assert not list(self.model.buffers()), "buffers would have to be averaged, too"
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.params, lr=workload.lr, fused=True)
        self.server = [p.detach().clone() for p in self.params]
        self.micro = None if device == "cuda" else workload.micro_batch
        self.steps = self.samples = 0
        self.loss = self.accuracy = float("nan")

    @torch.no_grad()
    def _receive(self) -> None:
        for own, broadcast in zip(self.params, self.server, strict=True):
            own.copy_(broadcast)

    @torch.no_grad()
    def _upload(self, mean: list[Tensor], share: float) -> None:
        for total, own in zip(mean, self.params, strict=True):
            total.add_(own, alpha=share)

    def train(self, round_idx: int) -> None:
        """One round: a cohort trains and the server takes the weighted mean."""
        rng = generator(0, "cohort", round_idx)
        num = self.workload.num_clients
        cohort = rng.choice(num, self.workload.cohort, replace=False).tolist()
        offsets = self.data.offsets
        used = {k: self.workload.used(offsets[k + 1] - offsets[k]) for k in cohort}
        mean = [torch.zeros_like(p) for p in self.server]
        self.model.train()
        for client_id in cohort:
            self._receive()
            self._train_client(client_id, used[client_id])
            self._upload(mean, used[client_id] / sum(used.values()))
        self.server = mean

    def _train_client(self, client_id: int, used: int) -> None:
        inputs, targets = self.data.client(client_id)
        size = used if self.workload.batch_size < 0 else self.workload.batch_size
        for _ in range(self.workload.local_epochs):
            if size < len(targets):  # the order within a step does not matter
                order = torch.randperm(len(targets), device=self.device)[:used]
                x, y = inputs[order], targets[order]
            else:
                x, y = inputs, targets
            for batch in zip(x.split(size), y.split(size), strict=True):
                self._step(*batch)
                self.steps += 1
            self.samples += used

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.micro is None or len(targets) <= self.micro:
            F.cross_entropy(self.model(inputs), targets).backward()
        else:
            for x, y in zip(inputs.split(self.micro), targets.split(self.micro), strict=True):
                loss = F.cross_entropy(self.model(x), y, reduction="sum") / len(targets)
                loss.backward()
        self.optimizer.step()

    @torch.inference_mode()
    def evaluate(self) -> None:
        """Loss and accuracy of the server's model on all test examples."""
        self._receive()
        self.model.eval()
        loss = torch.zeros((), device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        for x, y in self.data.test:
            logits = self.model(x)
            loss += F.cross_entropy(logits, y, reduction="sum")
            correct += (logits.argmax(dim=1) == y).sum()
        self.loss = float(loss) / self.workload.num_test
        self.accuracy = int(correct) / self.workload.num_test


def timed_rounds(loop: PlainLoop, rounds: int) -> Iterator[dict[str, Any]]:
    """Each round's seconds and memory."""
    process = psutil.Process()
    for round_idx in range(1, rounds + 1):
        start = time.perf_counter()
        loop.train(round_idx)
        if loop.device == "cuda":
            torch.cuda.synchronize()
        trained = time.perf_counter()
        loop.evaluate()  # ends in numbers on the host, so nothing is still running
        done = time.perf_counter()
        yield {
            "train_s": trained - start,
            "eval_s": done - trained,
            "rss_bytes": process.memory_info().rss,
            "gpu_bytes": torch.cuda.max_memory_allocated() if loop.device == "cuda" else 0,
        }


def main() -> None:
    """Run a workload's rounds; one JSON object on standard output."""
    parser = argparse.ArgumentParser(description="FedAvg in plain PyTorch, timed.")
    parser.add_argument("workload", type=Path, help="JSON file of a Workload")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True, help="warm-up included")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loop = PlainLoop(read_workload(options.workload), options.device)
    rounds = list(timed_rounds(loop, options.rounds))
    result = {
        "rounds": rounds,
        "steps": loop.steps / options.rounds,
        "samples": loop.samples / options.rounds,
        "loss": loop.loss,
        "accuracy": loop.accuracy,
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
