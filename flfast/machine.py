"""Facts about the machine. Torch-free."""

import os
import platform
import re
from pathlib import Path

import psutil


def num_cores() -> int:
    """Physical cores that this process may use: fewer than the machine's in a container."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        allowed, period = quota.read_text().split()
        cores = cores if allowed == "max" else min(cores, int(allowed) // int(period))
    return max(cores, 1)


def cpu_name() -> str:
    """The processor's model name, as the operating system reports it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), flags=re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def free_memory() -> int:
    """Bytes of memory that this process may still take: of the machine, or of its container."""
    free = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    most, used = group / "memory.max", group / "memory.current"
    if most.is_file() and used.is_file() and (limit := most.read_text().strip()) != "max":
        free = min(free, max(int(limit) - int(used.read_text()), 0))
    return int(free)
