"""Checks of this machine, one function each: whether it works, and how to fix it if not."""

import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from flfast.distributed.launcher import RankDiedError, on_ranks
from flfast.distributed.process_group import enter
from flfast.engines.fused.graph.executor import choice, wanted
from flfast.state.fp32 import describe_fp32
from flfast.state.machine import cpu_name, num_cores
from flfast.state.native.compiler import loaded, missing
from flfast.state.version import __version__

Result = tuple[bool | None, str]

_ALL_REDUCE_S = 10
"""Timeout in seconds."""

_FIXES = {"gloo": "GLOO_SOCKET_IFNAME=lo", "nccl": "trainer.devices=1; NCCL_DEBUG=INFO says more"}
_PACKAGES = ("torch", "torchvision", "lightning", "hydra-core")


def versions() -> str:
    """Versions of flfast, Python and the main dependencies."""
    found = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"flfast {__version__}, Python {platform.python_version()}, {found}"


def processors() -> str:
    """Processor, memory, GPUs and driver."""
    memory = psutil.virtual_memory()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    facts = f"(driver {_driver()}, CUDA {torch.version.cuda}, {describe_fp32()})"
    on = f"{', '.join(gpus)} {facts}" if gpus else "no GPU"
    return (
        f"{cpu_name()}, {num_cores()} cores, {memory.available / 1e9:.0f} of "
        f"{memory.total / 1e9:.0f} GB free, "
        f"{on}; OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # noqa: BLE001 - without the package, or of another maker
        return "unknown"


def bytecode() -> Result:
    """Whether Python keeps the modules that it compiles, so that later starts are fast."""
    assert torch.__file__ is not None
    if Path(cache_from_source(torch.__file__)).exists():
        return True, "Python starts from compiled modules"
    if sys.dont_write_bytecode:
        fix = "unset PYTHONDONTWRITEBYTECODE"
    else:
        fix = "set PYTHONPYCACHEPREFIX to a writable folder, if the next start says this again"
    return False, f"Python compiles torch and others at each start, which takes seconds; {fix}"


def kernels() -> Result:
    """Compile flfast's C++ if necessary, and try a small matrix product."""
    missing.cache_clear()  # forget an earlier failure
    reason = missing()
    if reason is None:
        x, w = torch.randn(10, 20), torch.randn(30, 20)
        found = torch.ops.flfast.linear(x, w, None, False)  # noqa: FBT003 - C++ knows no names
        if torch.allclose(found, x @ w.T, atol=1e-4):
            return True, f"{loaded()}, a product is correct"
        reason = "a product is wrong"
    return False, (
        f"{reason}; without our C++ training is correct but slower; install g++ or "
        f"clang++ with C++20, or set XDG_CACHE_HOME to an empty, writable folder"
    )


def executor() -> Result:
    """The executor of the loop over local steps."""
    name, why = choice(wanted())
    if wanted() or name != "straight-line":
        return True, f"{name}: {why}"
    return False, (
        f"{why}; training is correct without it, but local steps run as {name}, slower for small "
        f"models"
    )


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def writable(folder: Path) -> Result:
    """Check whether a run can write below a folder, which need not exist yet."""
    place = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"flfast")
    except OSError as error:
        return False, f"{error}; choose another with hydra.run.dir=FOLDER"
    free = shutil.disk_usage(place).free
    return True, f"{folder.absolute()}, {free / 1e9:.0f} GB free"


def gloo() -> Result:
    """All-reduce over two ranks on the CPU."""
    return _all_reduce("gloo", 2)


def nccl() -> Result:
    """All-reduce over two GPUs, or over a single one."""
    gpus = torch.cuda.device_count()
    return _all_reduce("nccl", min(gpus, 2)) if gpus else (None, "no GPU")


def _all_reduce(backend: str, size: int) -> Result:
    try:
        sums = on_ranks(size, _sum_of_ranks, backend)
        reason = "" if set(sums.values()) == {size * (size + 1) / 2} else f"wrong sums {sums}"
    except RankDiedError as error:
        reason = str(error)
    if not reason:
        return True, f"all-reduce over {size} {'process' if size == 1 else 'processes'}"
    return False, f"{reason}; use strategy=single, or {_FIXES[backend]}"


def _sum_of_ranks(backend: str) -> float:
    enter(backend, timeout_s=_ALL_REDUCE_S)
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
    """Record an addition as a CUDA graph, and replay it."""
    if not torch.cuda.is_available():
        return None, "no GPU"
    value = torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value.add_(1)
    graph.replay()
    return bool(value == 1), "one operation recorded and replayed"
