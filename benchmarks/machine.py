"""Facts about the machine, which every result carries. Torch-free."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from flfast.machine import cpu_name, num_cores

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
