"""Facts about the machine. Torch-free."""

import os
import platform
import re
import sys
from pathlib import Path


def num_cores() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's model name, as the operating system reports it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), flags=re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()
