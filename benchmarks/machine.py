"""Facts about the machine, which every result carries. Torch-free."""

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]


def facts() -> dict[str, Any]:
    """What a figure cannot be read without."""
    return {
        "cpu": cpu_name(),
        "cores": num_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": psutil.getloadavg()[0],
        "gpus": gpu_names(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "lightning", "numpy")},
        "commit": commit(),
    }


def num_cores() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """As the system calls it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), flags=re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def gpu_names() -> list[str]:
    """As NVIDIA's tool calls them; empty without it."""
    try:
        listed = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    except (OSError, subprocess.CalledProcessError):
        return []
    return listed.splitlines()


def commit() -> str:
    """Of the checkout, with a + where files differ from it; empty outside of git."""
    try:
        changed = "+" if _output("git", "status", "--porcelain", "-uno") else ""
        return _output("git", "rev-parse", "--short", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return ""


def _output(*command: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
