"""What works on this machine: one function a part, which says so, or what to do."""

import os
import platform
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flfast.lit.devices import usable_cores
from flfast.lit.fused.native.build import cache_folder, missing
from flfast.machine import cpu_name

Result = tuple[bool | None, str]

_PACKAGES = ("torch", "torchvision", "lightning", "hydra-core")


def versions() -> str:
    """Of Python and of what flfast stands on."""
    try:
        own = version("flfast")
    except PackageNotFoundError:
        own = "from a folder"
    found = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"flfast {own}, Python {platform.python_version()}, {found}"


def processors() -> str:
    """Processor, memory, GPUs and driver."""
    memory = psutil.virtual_memory()
    gpus = [torch.cuda.get_device_name(index) for index in range(_num_gpus())]
    on = f"{', '.join(gpus)} (driver {_driver()}, CUDA {torch.version.cuda})" if gpus else "no GPU"
    return (
        f"{cpu_name()}, {usable_cores()} cores, {memory.available / 1e9:.0f} of "
        f"{memory.total / 1e9:.0f} GB free, "
        f"{on}; OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )


def _num_gpus() -> int:
    return torch.cuda.device_count()


def _driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


def kernels() -> Result:
    """Kernels of our own for small matrix products, compiled if they were not."""
    missing.cache_clear()  # asked anew
    reason = missing()
    if reason is None:
        return True, f"in {cache_folder()}"
    return False, (
        f"{reason}; training is correct, but slower for small models: install g++ or clang++ "
        f"with C++20, or set XDG_CACHE_HOME to a folder that can be written to"
    )


def compilers() -> Result:
    """Whether torch.compile finds what it needs; flfast does without it."""
    needed = "triton" if torch.cuda.is_available() else "g++"
    there = find_spec(needed) if needed == "triton" else shutil.which(needed)
    return bool(there), f"{needed} is {'there' if there else 'missing'}; flfast does without it"


def writable(folder: Path) -> Result:
    """Whether runs can be written below a folder, which need not exist yet."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"flfast")
    except OSError as error:
        return False, f"{error}; choose another with hydra.run.dir=FOLDER"
    free = shutil.disk_usage(place).free
    return True, f"{folder.absolute()}, {free / 1e9:.0f} GB free"


def all_reduce() -> Result:
    """A sum over two forked ranks, with NCCL where there are two GPUs."""
    backend = "nccl" if _num_gpus() > 1 else "gloo"
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="doctor",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        sums = elastic_launch(settings, _sum_of_ranks)(backend)
    except Exception as error:  # noqa: BLE001 - whatever stops them
        reason = str(error).strip().splitlines()[-1]
        return False, f"{backend}: {reason}; use strategy=single, or GLOO_SOCKET_IFNAME=lo"
    return set(sums.values()) == {3.0}, f"{backend}, two processes, one all-reduce"


def _sum_of_ranks(backend: str) -> float:
    dist.init_process_group(backend)
    device = torch.device("cuda", dist.get_rank()) if backend == "nccl" else torch.device("cpu")
    value = torch.tensor(1.0 + dist.get_rank(), device=device)
    dist.all_reduce(value)
    dist.destroy_process_group()
    return value.item()


def cuda_graph() -> Result:
    """A recorded addition, replayed."""
    if not torch.cuda.is_available():
        return None, "no GPU"
    value = torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value.add_(1)
    graph.replay()
    return bool(value == 1), "one operation recorded and replayed"
