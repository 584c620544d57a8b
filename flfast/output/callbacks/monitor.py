"""Columns of processor, memory and GPU usage for every round."""

import logging
import shutil
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.federation.loop import Federation
from flfast.federation.samplers.cohort import Cohort
from flfast.state.messages import one_line
from flfast.state.plan import RoundPlan

_warn = rank_zero_only(logging.getLogger(__name__).warning)


class Monitor(Callback):
    """Adds columns about rank 0's process, its GPU and its machine to every round's row.

    Columns, each of the round's training:
        monitor/rank0_cpu_percent: processor time of the process; 100 is one core.
        monitor/rank0_memory_bytes: resident memory of the process at the end.
        monitor/machine_cpu_percent: processor time of all processes; 100 is all cores.
        monitor/machine_memory_percent: memory in use by all processes at the end.
        monitor/disk_free_bytes: free on the disk of the run's folder at the end.
        monitor/gpu_percent: utilisation by the driver (NVML), at the end; CUDA only.
        monitor/gpu_memory_bytes: peak of the process's allocations by torch; CUDA only.

    A column that this machine cannot measure stays empty, and the log has one line that says why.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wall = self._cpu = 0.0
        self._missing: set[str] = set()

    def on_round_start(self, federation: Federation, plan: RoundPlan, cohort: Cohort) -> None:
        """Start the clocks."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._try(
            "monitor/machine_cpu_percent", psutil.cpu_percent
        )  # the next call counts from here
        if torch.cuda.is_initialized():
            self._try("monitor/gpu_memory_bytes", torch.cuda.reset_peak_memory_stats)

    def on_round_trained(self, federation: Federation, row: dict[str, Any]) -> None:
        """Add the columns."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        measures: dict[str, Callable[[], float]] = {
            "monitor/rank0_cpu_percent": lambda: 100 * cpu / wall,
            "monitor/rank0_memory_bytes": lambda: psutil.Process().memory_info().rss,
            "monitor/machine_cpu_percent": psutil.cpu_percent,
            "monitor/machine_memory_percent": lambda: psutil.virtual_memory().percent,
            "monitor/disk_free_bytes": lambda: shutil.disk_usage(federation.run_dir).free,
        }
        if torch.cuda.is_initialized():
            measures["monitor/gpu_percent"] = torch.cuda.utilization
            measures["monitor/gpu_memory_bytes"] = torch.cuda.max_memory_allocated
        for name, measure in measures.items():
            value = self._try(name, measure)
            if value is not None:
                row[name] = value

    def _try(self, name: str, measure: Callable[[], Any]) -> Any:
        """What is measured; None, now and in later rounds, if that fails."""
        if name in self._missing:
            return None
        try:
            return measure()
        except Exception as error:  # noqa: BLE001 - drivers and virtual machines have many
            self._missing.add(name)
            _warn("%s stays empty from here on: %s", name, one_line(error))
            return None
