"""Jobs that train: the command itself, in this process, and the loop one would write by hand."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

import flfast.train
from benchmarks.checkouts import HERE
from benchmarks.gpu.job import Found, Setting
from benchmarks.gpu.patching import put
from benchmarks.workload import Workload
from benchmarks.workloads import find
from flfast.engines.fused.graph.cuda_graphs import CudaGraphs
from flfast.engines.fused.run.stack_choice import StackProgram
from flfast.output.results.table import read_rows

Answer = Callable[[Setting, Found], None]
Patch = Callable[[], None]


def trained(
    workload: str | Workload,
    rounds: int,
    *words: str,
    patches: Sequence[Patch] = (),
    cpu_words: Sequence[str] = (),
) -> Answer:
    """A run of the command: seconds of its rounds, what it recorded, and where it ended.

    Medians are over the last half of the rounds: the first ones record.

    Args:
        workload: or its name.
        rounds: on a GPU; two on a CPU.
        words: overrides.
        patches: change this process before the run.
        cpu_words: overrides that make a CPU do what a GPU does.
    """

    def run(setting: Setting, found: Found) -> None:
        work = _work(workload, setting)
        _count(found)
        for patch in patches:
            patch()
        given = [*words, *(() if setting.cuda else cpu_words)]
        num = rounds if setting.cuda else 2
        with TemporaryDirectory(prefix="flfast-gpu-run-") as folder:
            place = Path(folder) / "run"
            sys.argv = [
                *("flfast.train", "--config-dir", str(HERE.conf)),
                *work.flfast_overrides(device=setting.device, rounds=num),
                *("strategy=single", "threads=1", "checkpoint.every=0"),
                *(*given, f"hydra.run.dir={place}"),
            ]
            start = time.perf_counter()
            try:
                flfast.train.main()
            finally:
                found["wall_s"] = time.perf_counter() - start
                _read(place, found)
                _memory(setting, found)

    return run


def plain(workload: str, rounds: int) -> Answer:
    """The loop that one would write by hand."""

    def run(setting: Setting, found: Found) -> None:
        from benchmarks.plain import PlainLoop
        from benchmarks.plain import run as loop
        from benchmarks.population import load

        work = _work(workload, setting)
        torch.set_num_threads(1)
        done = loop(PlainLoop(work, load(work, setting.device)), rounds if setting.cuda else 2)
        _, *rows = done["rounds"]
        found |= {f"{what}_s": median(row[f"{what}_s"] for row in rows) for what in _SECONDS}
        found["loss"] = done["loss"]

    return run


_SECONDS = ("train", "eval")
_LOSSES = ("global/loss", "train/loss")


def _work(workload: str | Workload, setting: Setting) -> Workload:
    if isinstance(workload, str):
        found = find(workload, pfllib=Path("nowhere"), quick=not setting.cuda)
        return found if setting.cuda else replace(found, rounds=1)
    if setting.cuda:
        return workload
    small = workload.shrunk()
    if not isinstance(small.train_sizes, int):
        return small
    # A ResNet takes 0.2 s for a step of 50 images on a CPU.
    return replace(small, train_sizes=min(small.train_sizes, 20), test_sizes=20, local_epochs=1)


def _read(folder: Path, found: Found) -> None:
    """What the run left: seconds by round, losses, warnings."""
    _, *rows = read_rows(folder / "metrics.csv") or [{}]
    if rows:
        seconds = {what: [float(row[f"time/{what}_s"] or 0) for row in rows] for what in _SECONDS}
        steady = slice(len(rows) // 2, None)
        last = {key: float(rows[-1].get(key) or "nan") for key in _LOSSES}
        found |= {f"{what}_s": median(seconds[what][steady]) for what in _SECONDS}
        found |= {
            "best_train_s": min(seconds["train"]),
            "rounds_s": seconds["train"],
            "loss": last["global/loss"],
            "train_loss": last["train/loss"],
        }
    lines = [line for path in folder.glob("*.log") for line in path.read_text().splitlines()]
    found["stacks"] = [line[-400:] for line in lines if " stacks: " in line]
    found["warnings"] = sorted({line[-200:] for line in lines if "[WARNING]" in line})


def _memory(setting: Setting, found: Found) -> None:
    if setting.cuda and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # of a context that has died
            found["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9


def _count(found: Found) -> None:
    """Count what a run records, and how wide its stacks are."""
    found |= {"recordings": 0, "recordings_s": 0.0, "widths": [], "not_recorded": []}
    record, width = CudaGraphs.record, StackProgram.width

    def recorded(self: CudaGraphs, run: Callable[[], None]) -> Callable[[], None]:
        start = time.perf_counter()
        try:
            return record(self, run)
        except BaseException as error:
            found["not_recorded"].append(str(error).splitlines()[0][:200])
            raise
        finally:
            found["recordings"] += 1
            found["recordings_s"] += time.perf_counter() - start

    def widened(self: StackProgram, *args: Any) -> int:
        value = width(self, *args)
        if value not in found["widths"]:
            found["widths"].append(value)
        return value

    put(CudaGraphs, "record", recorded)
    put(StackProgram, "width", widened)
