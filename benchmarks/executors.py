"""Milliseconds of a local step by executor, with and without our kernels: one thread, batch 10.

FedAvg with SGD on images of MNIST's shape. Executors take turns; the least of all turns counts.

    python -m benchmarks.executors --seconds 30
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from torch import nn

from flfast.algorithms.contract.client import LocalStage
from flfast.algorithms.fedavg import fedavg
from flfast.engines.fused.graph.executor import EXECUTORS, Executor
from flfast.engines.fused.graph.instructions import StepCode, instructions
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.engines.fused.graph.trace import operators, rewritten, simplified
from flfast.engines.fused.graph.update_rules import local_optimizer
from flfast.lit.channels_last import use_channels_last
from flfast.lit.local_module import LocalModule
from flfast.models.cnn import cnn
from flfast.models.logistic import logistic
from flfast.models.mlp import mlp
from flfast.state.machine import keep_freed_memory
from flfast.state.tree import Tree, leaves

_BATCH, _SHAPE = 10, (1, 28, 28)
_ROWS, _CALL_S = 64, 0.001


def models() -> Iterator[tuple[str, nn.Module]]:
    """Name and model."""
    shape: Any = {"input_shape": _SHAPE, "num_classes": 10}
    yield "logistic regression", logistic(**shape)
    yield "MLP 784-200-200-10", mlp(**shape, hidden=[200, 200], dropout=0.0)
    yield "CNN", cnn(**shape, channels=[32, 64], hidden=512, padding=2)


def steps_of(
    model: nn.Module, executor: Callable[[StepCode], Executor], *, kernels: bool
) -> Callable[[int], None]:
    """Number of steps -> None; takes them."""
    use_channels_last(model)
    params = {name: leaf.detach() for name, leaf in model.named_parameters()}
    sgd = local_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    joint: Tree = {"params": {}, "buffers": {}}
    local = LocalModule(model, fedavg(weighting="samples"), torch.optim.SGD)
    step = LocalStep(local, sgd, stage=LocalStage(list(params)), joint=joint)
    state: Tree = {"params": params, "buffers": {}, "optimizer": sgd.empty(params)}
    state["loss"] = torch.zeros(())
    settings: Tree = {"lr": torch.full((), 0.01, dtype=torch.float64)}
    weights = torch.full((_BATCH,), 1 / _BATCH)
    shared: Tree = {"weights": weights, "num": torch.tensor(10.0), "share": torch.tensor(1.0)}
    rows: Tree = {
        "inputs": torch.randn(_ROWS, _BATCH, *_SHAPE),
        "targets": torch.randint(10, (_ROWS, _BATCH)),
    }
    one = {name: row[0] for name, row in rows.items()}
    context: Tree = {"server": {}, "client": {}, "start": {}}
    module = operators(step.whole, [state, context, settings, {**shared, **one}])
    if kernels:
        module = rewritten(module)
    else:
        simplified(module).recompile()
    program = executor(instructions(module, sliced=len(rows)))
    fixed = [leaf for tree in (state, context, settings, shared) for leaf in leaves(tree)]

    def run(num: int) -> None:
        with torch.inference_mode():
            program(fixed, [row[:num] for row in rows.values()], num=num, width=1)

    return run


def least_ms(runs: list[Callable[[int], None]], seconds: float) -> list[float]:
    """Of a step by each, in milliseconds; calls are short, as other work on the machine is not."""
    least = min(_seconds(run, 1) for run in runs * 5)
    num = max(min(int(_CALL_S / least), _ROWS), 1)
    found = [float("inf")] * len(runs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for place, run in enumerate(runs):
            found[place] = min(found[place], 1000 * _seconds(run, num) / num)
    return found


def _seconds(run: Callable[[int], None], num: int) -> float:
    start = time.perf_counter()
    run(num)
    return time.perf_counter() - start


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Milliseconds of a local step by executor.")
    parser.add_argument("--seconds", type=float, default=10, help="for every model")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    keep_freed_memory()
    columns = [f"{name}, {more}" for name in EXECUTORS for more in ("kernels", "none")]
    table = Table("ms a step", *columns, box=MARKDOWN)
    for title, model in models():
        runs = [
            steps_of(model, executor, kernels=kernels)
            for executor in EXECUTORS.values()
            for kernels in (True, False)
        ]
        table.add_row(title, *(f"{ms:.4f}" for ms in least_ms(runs, seconds)))
    Console(width=99).print(table)


if __name__ == "__main__":
    main()
