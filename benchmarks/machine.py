"""Facts about the machine, which every result carries. Torch-free."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from benchmarks.checkouts import ROOT, commit
from flfast.state.machine import cpu_name, num_cores

__all__ = ["facts", "gpu_names", "num_cores"]


def facts() -> dict[str, Any]:
    """What a figure cannot be read without."""
    return {
        "cpu": cpu_name(),
        "cores": num_cores(),
        # Two threads of a core share its units: together they reach the best rate of one.
        "physical_cores": psutil.cpu_count(logical=False),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": psutil.getloadavg()[0],
        "gpus": gpu_names(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "lightning", "numpy")},
        "commit": commit(ROOT),
    }


def gpu_names() -> list[str]:
    """As NVIDIA's tool calls them; empty without it."""
    try:
        listed = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    except (OSError, subprocess.CalledProcessError):
        return []
    return listed.splitlines()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # installed by other means than a package
        return ""


def _output(*command: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
