"""Columns of processor, memory and GPU usage for every round."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psutil
import torch
from lightning.pytorch.callbacks import Callback

if TYPE_CHECKING:
    from flfast.engines.reports import ClientReport
    from flfast.federation.loop import Federation
    from flfast.federation.samplers.cohort import Cohort
    from flfast.plan import RoundPlan


class Monitor(Callback):
    """Adds columns about this process, which is rank 0, to every round's row.

    Columns:
        monitor/cpu_percent: processor time over wall time of training; 100 is one core.
        monitor/rss_bytes: resident memory at the end of the round.
        monitor/gpu_percent: utilisation by NVML, mean of one sample per client; CUDA only.
        monitor/gpu_memory_bytes: peak of torch's allocations in the round; CUDA only.
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
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()

    def on_client_end(self, federation: Federation, report: ClientReport) -> None:
        """Sample the GPU."""
        if torch.cuda.is_initialized():
            self._gpu_percents.append(torch.cuda.utilization())

    def on_round_trained(self, federation: Federation, row: dict[str, Any]) -> None:
        """Add the columns."""
        wall = time.perf_counter() - self._wall
        row["monitor/cpu_percent"] = 100 * (time.process_time() - self._cpu) / wall
        row["monitor/rss_bytes"] = self._process.memory_info().rss
        if self._gpu_percents:
            row["monitor/gpu_percent"] = sum(self._gpu_percents) / len(self._gpu_percents)
            row["monitor/gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
