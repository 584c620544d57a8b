"""Columns of processor, memory and GPU usage for every round."""

import shutil
import time
from contextlib import suppress
from typing import Any

import psutil
import torch
from lightning.pytorch.callbacks import Callback

from flfast.channel.sent import ClientReport
from flfast.federation.loop import Federation
from flfast.federation.samplers.cohort import Cohort
from flfast.state.plan import RoundPlan


class Monitor(Callback):
    """Adds columns about rank 0's process, its GPU and its machine to every round's row.

    Columns, each of the round's training:
        monitor/rank0_cpu_percent: processor time of the process; 100 is one core.
        monitor/rank0_memory_bytes: resident memory of the process at the end.
        monitor/machine_cpu_percent: processor time of all processes; 100 is all cores.
        monitor/machine_memory_percent: memory in use by all processes at the end.
        monitor/disk_free_bytes: free on the disk of the run's folder at the end.
        monitor/gpu_percent: utilisation by NVML, mean of one sample per client; CUDA only.
        monitor/gpu_memory_bytes: peak of the process's allocations by torch; CUDA only.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = psutil.Process()
        self._wall = self._cpu = 0.0
        self._gpu_percents: list[int] = []

    def on_round_start(self, federation: Federation, plan: RoundPlan, cohort: Cohort) -> None:
        """Start the clocks."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._gpu_percents = []
        psutil.cpu_percent()  # the next call counts from here
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()

    def on_client_end(self, federation: Federation, report: ClientReport) -> None:
        """Sample the GPU."""
        if torch.cuda.is_initialized():
            self._gpu_percents.append(torch.cuda.utilization())

    def on_round_trained(self, federation: Federation, row: dict[str, Any]) -> None:
        """Add the columns."""
        wall = time.perf_counter() - self._wall
        row["monitor/rank0_cpu_percent"] = 100 * (time.process_time() - self._cpu) / wall
        row["monitor/rank0_memory_bytes"] = self._process.memory_info().rss
        row["monitor/machine_cpu_percent"] = psutil.cpu_percent()
        row["monitor/machine_memory_percent"] = psutil.virtual_memory().percent
        with suppress(OSError):  # a folder that was deleted stops the run elsewhere
            row["monitor/disk_free_bytes"] = shutil.disk_usage(federation.run_dir).free
        if self._gpu_percents:
            row["monitor/gpu_percent"] = sum(self._gpu_percents) / len(self._gpu_percents)
            row["monitor/gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
