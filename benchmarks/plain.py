"""The yardstick: FedAvg as one would write it by hand for speed, in plain PyTorch.

All data lie in memory on the device, one model serves all clients, torch.optim.SGD (fused) steps
it, and uploads are added to a running mean. No Lightning, no data loader, no copy that the
arithmetic does not need. An epoch gathers a client's examples once in random order and slices
them. With several processes each trains its share of the cohort, and one all-reduce a round adds
their means up.

    python -m benchmarks.plain WORKLOAD.json --threads 1 --rounds 3 --device cpu

writes one JSON object: seconds of every round, and what was computed in them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from benchmarks.building import build_model, generator, read_workload, seed_torch
from benchmarks.population import Population, load
from benchmarks.workload import Workload


class PlainLoop:
    """FedAvg over a population.

    Args:
        workload: what to run.
        data: the workload's population, on the device and in the layout to train in.
        rank: number of this process.
        world_size: processes that share a cohort.

    Attributes:
        steps: local steps of this process so far.
        samples: examples that it trained on so far.
        loss, accuracy: of the server's model on the test examples, when last evaluated.
    """

    def __init__(
        self,
        workload: Workload,
        data: Population,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.workload, self.data, self.device = workload, data, data.targets.device.type
        self.rank, self.world_size = rank, world_size
        seed_torch(0, "initial weights")
        self.model = build_model(workload).to(self.device)
        if data.layout == torch.channels_last:
            self.model.to(memory_format=torch.channels_last)
        assert not list(self.model.buffers()), "buffers would have to be averaged, too"
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(
            self.params,
            lr=workload.lr,
            momentum=workload.momentum,
            weight_decay=workload.weight_decay,
            fused=True,
        )
        self.server = [p.detach().clone() for p in self.params]
        self.micro = None if self.device == "cuda" else workload.micro_batch
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
        for client_id in dealt(used, self.world_size)[self.rank]:
            self._receive()
            self.optimizer.state.clear()  # momentum begins anew
            self._train_client(client_id, used[client_id])
            self._upload(mean, used[client_id] / sum(used.values()))
        if self.world_size > 1:
            _all_reduce(mean)
        self.server = mean

    def train_from(self, weights: Iterable[Tensor], client_id: int) -> int:
        """Train one client from given weights; returns how many of its examples are used.

        The result is in `params`.
        """
        self.server = list(weights)
        used = self.workload.used(self.data.offsets[client_id + 1] - self.data.offsets[client_id])
        self._receive()
        self.optimizer.state.clear()
        self.model.train()
        self._train_client(client_id, used)
        return used

    def _train_client(self, client_id: int, used: int) -> None:
        inputs, targets = self.data.client(client_id)
        size = used if self.workload.batch_size < 0 else self.workload.batch_size
        for _ in range(self.workload.local_epochs):
            if size < len(targets):  # the order within a step does not matter
                order = torch.randperm(len(targets), device=self.device)[:used]
                x, y = inputs[order], targets[order]
            else:
                x, y = inputs, targets
            if self.data.pixels is not None:
                x = self.data.pixels.augmented(x).contiguous(memory_format=self.data.layout)
            for batch in zip(x.split(size), y.split(size), strict=True):
                self._step(*batch)
                self.steps += 1
            self.samples += used

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        if self.data.pixels is not None:
            inputs = self.data.pixels.normalised(inputs)
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
        totals = torch.zeros(2, device=self.device)
        for x, y in self.data.test[self.rank :: self.world_size]:
            logits = self.model(x)
            totals[0] += F.cross_entropy(logits, y, reduction="sum")
            totals[1] += (logits.argmax(dim=1) == y).sum()
        if self.world_size > 1:
            dist.all_reduce(totals)
        self.loss, self.accuracy = (n / self.workload.num_test for n in totals.tolist())


def dealt(samples: dict[int, int], world_size: int) -> list[list[int]]:
    """Clients of every process: the longest first, to the process that has least so far.

    >>> dealt({0: 10, 1: 50, 2: 30, 3: 30}, 2)
    [[1, 0], [2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for client_id in sorted(samples, key=lambda k: -samples[k]):
        least = loads.index(min(loads))
        shares[least].append(client_id)
        loads[least] += samples[client_id]
    return shares


def _all_reduce(means: list[Tensor]) -> None:
    flat = torch.cat([mean.flatten() for mean in means])
    dist.all_reduce(flat)
    parts = flat.split([mean.numel() for mean in means])
    for mean, part in zip(means, parts, strict=True):
        mean.copy_(part.view(mean.shape))


def timed_rounds(loop: PlainLoop, rounds: int) -> Iterator[dict[str, Any]]:
    """Each round's seconds and memory, and when it ended."""
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
            "ended_at": time.time(),
            "gpu_bytes": torch.cuda.max_memory_allocated() if loop.device == "cuda" else 0,
        }


def run(loop: PlainLoop, rounds: int) -> dict[str, Any]:
    """Run a loop's rounds, and say what was done in them by all processes."""
    done = list(timed_rounds(loop, rounds))
    work = torch.tensor([loop.steps, loop.samples])
    if loop.world_size > 1:
        dist.all_reduce(work)
    steps, samples = (work / rounds).tolist()
    return {
        "rounds": done,
        "steps": steps,
        "samples": samples,
        "loss": loop.loss,
        "accuracy": loop.accuracy,
    }


def run_processes(
    workload: Workload, data: Population, *, world_size: int, rounds: int, threads: int
) -> dict[str, Any]:
    """The same in several processes on the CPU; what rank 0 says.

    They are forked, so that the data exist once.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="flfast-benchmark-") as folder:
        meeting = f"file://{folder}/store"

        def rank(number: int) -> dict[str, Any]:
            torch.set_num_threads(threads)
            dist.init_process_group(
                "gloo", init_method=meeting, rank=number, world_size=world_size
            )
            loop = PlainLoop(workload, data, rank=number, world_size=world_size)
            result = run(loop, rounds)
            dist.destroy_process_group()
            return result

        others = [
            context.Process(target=rank, args=(n,), daemon=True) for n in range(1, world_size)
        ]
        for process in others:
            process.start()
        result = rank(0)
        for process in others:
            process.join()
    return result


def main() -> None:
    """Run a workload's rounds; one JSON object on standard output."""
    parser = argparse.ArgumentParser(description="FedAvg in plain PyTorch, timed.")
    parser.add_argument("workload", type=Path, help="JSON file of a Workload")
    parser.add_argument("--threads", type=int, required=True, help="of each process")
    parser.add_argument("--rounds", type=int, required=True, help="warm-up included")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    # Of one thread before a fork: a child has none of its parent's others.
    torch.set_num_threads(1 if options.processes > 1 else options.threads)
    workload = read_workload(options.workload)
    data = load(workload, options.device, channels_last=options.channels_last)
    if options.processes > 1:
        if options.device != "cpu":
            parser.error("--processes is for the CPU")
        counts = {"world_size": options.processes, "rounds": options.rounds}
        result = run_processes(workload, data, threads=options.threads, **counts)
    else:
        result = run(PlainLoop(workload, data), options.rounds)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
