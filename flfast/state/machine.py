"""Facts about the machine. Torch-free."""

import ctypes
import os
import platform
import re
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
"""Limits of a container."""

# From malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_KEPT_BYTES = 1 << 30

LARGE_BYTES = 1 << 27
"""Size from which a tensor has memory of its own, which is returned when it is freed."""


def num_cores() -> int:
    """Physical cores that this process may use: fewer than the machine's in a container."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    quota = _CGROUP / "cpu.max"
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
    files = [_CGROUP / name for name in ("memory.max", "memory.current", "memory.stat")]
    if all(file.is_file() for file in files):
        limit, used, stat = (file.read_text() for file in files)
        if limit.strip() != "max":
            # The kernel gives back what it keeps of files that nobody has used for some time.
            kept = re.search(r"^inactive_file (\d+)$", stat, flags=re.MULTILINE)
            taken = int(used) - (int(kept[1]) if kept else 0)
            free = min(free, max(int(limit) - taken, 0))
    return int(free)


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory instead of returning it to the kernel.

    Every local step frees and allocates the same few megabytes. Without this setting the kernel
    maps and zeroes them page by page each time, which is a tenth of a small CNN's step. Other C
    libraries are left alone.

    Memory of large tensors, such as the embedding of a large vocabulary, is returned: they do not
    fit into the gaps that smaller ones leave, so the process would grow by each.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def return_freed_memory() -> None:
    """Let glibc return its free memory: setting up frees more than a run needs."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
