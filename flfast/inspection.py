"""What works on this machine: one function a part, which says so, or what to do."""

import datetime
import os
import platform
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

import flfast
from flfast.lit.elastic import death, on_ranks
from flfast.lit.fused.native.build import cache_folder, missing
from flfast.machine import cpu_name, num_cores

Result = tuple[bool | None, str]

_ALL_REDUCE_S = 10
_CURES = {"gloo": "GLOO_SOCKET_IFNAME=lo", "nccl": "trainer.devices=1; NCCL_DEBUG=INFO says more"}
_PACKAGES = ("torch", "torchvision", "lightning", "hydra-core")


def versions() -> str:
    """Of Python and of what flfast stands on."""
    found = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"flfast {flfast.__version__}, Python {platform.python_version()}, {found}"


def processors() -> str:
    """Processor, memory, GPUs and driver."""
    memory = psutil.virtual_memory()
    gpus = [torch.cuda.get_device_name(index) for index in range(_num_gpus())]
    on = f"{', '.join(gpus)} (driver {_driver()}, CUDA {torch.version.cuda})" if gpus else "no GPU"
    return (
        f"{cpu_name()}, {num_cores()} cores, {memory.available / 1e9:.0f} of "
        f"{memory.total / 1e9:.0f} GB free, "
        f"{on}; OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )


def _num_gpus() -> int:
    return torch.cuda.device_count()


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # noqa: BLE001 - without the package, or of another maker
        return "unknown"


def kernels() -> Result:
    """Kernels of our own for small matrix products, compiled if they were not; one is tried."""
    missing.cache_clear()  # asked anew
    reason = missing()
    if reason is None:
        x, w = torch.randn(10, 20), torch.randn(30, 20)
        found = torch.ops.flfast.linear(x, w, None, False)  # noqa: FBT003 - C++ knows no names
        if torch.allclose(found, x @ w.T, atol=1e-4):
            return True, f"in {cache_folder()}, a product tried"
        reason = "a product is wrong"
    return False, (
        f"{reason}; training is correct without them, but slower for small models: install g++ or "
        f"clang++ with C++20, or set XDG_CACHE_HOME to an empty folder that can be written to"
    )


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


def gloo() -> Result:
    """A sum over two ranks on the CPU."""
    return _all_reduce("gloo", 2)


def nccl() -> Result:
    """A sum over two GPUs, or over the only one."""
    return _all_reduce("nccl", min(_num_gpus(), 2)) if _num_gpus() else (None, "no GPU")


def _all_reduce(backend: str, size: int) -> Result:
    try:
        sums = on_ranks(size, _sum_of_ranks, backend)
        reason = "" if set(sums.values()) == {size * (size + 1) / 2} else f"wrong sums {sums}"
    except ChildFailedError as error:
        reason = death(error, size)
    if not reason:
        return True, f"{size} {'process, its' if size == 1 else 'processes, one'} all-reduce"
    return False, f"{reason}; use strategy=single, or {_CURES[backend]}"


def _sum_of_ranks(backend: str) -> float:
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=_ALL_REDUCE_S))
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    value = torch.tensor(1.0 + rank, device=device)
    dist.all_reduce(value)
    total = value.item()
    dist.destroy_process_group()
    return total


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
