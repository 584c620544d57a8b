"""A device `strict` for tests, which computes on the CPU and refuses what a GPU refuses.

`strict_device.cpp` is it for torch; this file compiles it, once per machine and version of torch,
and introduces it to torch and to Lightning. As a plugin, `pytest -p strict_device`, it runs any
tests of one rank on the device: the Trainers of their federations are on it instead of the CPU.

Autograd has a thread for the device, so that processes that import this file cannot be forked.
"""

import ctypes
import fcntl
import hashlib
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import engine_runs
import lightning as L
import pytest
import strict_cuda
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy

from flfast.setup import module_trial
from flfast.state.native.compiler import COMPILERS, cache_folder

SOURCE = Path(__file__).with_suffix(".cpp")


def library():
    """Path of the compiled device."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    root = Path(torch.__file__).parent
    command = [
        *(compiler, "-O1", "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}"),
        *(f"-I{root / 'include/torch/csrc/api/include'}", str(SOURCE)),
        *(f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]
    text = f"{torch.__version__} {command}".encode()
    text += b"".join(
        path.read_bytes() for path in (SOURCE, *sorted(SOURCE.parent.glob("strict_*.h")))
    )
    target = cache_folder() / f"strict-device-{hashlib.sha256(text).hexdigest()[:16]}.so"
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = target.with_suffix(".part")
            subprocess.run([*command, "-o", part], check=True)
            part.replace(target)
    return target


def module():
    """What torch calls as `torch.strict`; random numbers are those of the CPU's generator."""
    found = ModuleType("torch.strict")
    found.is_available = found.is_initialized = lambda: True
    found.device_count, found.current_device = lambda: 1, lambda: 0
    found.mem_get_info = lambda device: (2**30, 2**30)
    found._is_in_bad_fork = lambda: False
    found.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    found.manual_seed = found.manual_seed_all = lambda seed: None
    found.get_rng_state = lambda device=None: torch.get_rng_state()
    found.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    return found


_LIBRARY = str(library())
torch.ops.load_library(_LIBRARY)
torch.utils.rename_privateuse1_backend("strict")
torch._register_device_module("strict", module())
torch.utils.generate_methods_for_privateuse1_backend()
# Parameters that a module moves to a GPU stay the same objects. Those of other makers' devices do
# so on request only.
torch.__future__.set_swap_module_params_on_conversion(True)
DEVICE = torch.device("strict", 0)


class HostCopy(NamedTuple):
    """A read of the device's memory by the host, as `.cpu()`, `.item()` and `if tensor:` are.

    Attributes:
        num_bytes: its size.
        callers: functions that led to it, the innermost first, as `engines/delivery.py:_changes`.
    """

    num_bytes: int
    callers: tuple[str, ...]


PACKAGE = Path(__file__).parent.parent / "flfast"
_copies: list[list[HostCopy]] = []


@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def _on_host_copy(num_bytes):
    frame, callers = sys._getframe(), []
    while frame := frame.f_back:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            callers.append(f"{path.relative_to(PACKAGE)}:{frame.f_code.co_name}")
    for found in _copies:
        found.append(HostCopy(num_bytes, tuple(callers)))


ctypes.CDLL(_LIBRARY).strict_listen(_on_host_copy)


@contextmanager
def host_copies():
    """A list, to which each copy from the device to the host is added meanwhile."""
    found: list[HostCopy] = []
    _copies.append(found)
    try:
        yield found
    finally:
        # By identity: lists of equal copies are equal.
        _copies[:] = [other for other in _copies if other is not found]


class CopiesByRound:
    """A callback that keeps the host copies of each round: of training, and of evaluation.

    Attributes:
        trained: copies from the start of a round until its server step is done, one list a round.
        evaluated: copies from there to the round's end, likewise.
    """

    def __init__(self):
        self.trained, self.evaluated, self._listening = [], [], ExitStack()

    def on_round_start(self, federation, *_):
        self._keep(self.trained)

    def on_round_trained(self, federation, *_):
        self._keep(self.evaluated)

    def on_run_end(self, federation):
        self._listening.close()

    def _keep(self, rounds):
        self._listening.close()
        rounds.append(self._listening.enter_context(host_copies()))


teardowns: list[int] = []
"""One for each time that Lightning has torn the device down."""


class StrictAccelerator(Accelerator):
    """The device for Lightning."""

    def setup_device(self, device):
        assert device == DEVICE

    def teardown(self):
        """As Lightning's for CUDA."""
        teardowns.append(1)
        torch.ops.strict.clear_workspaces()
        torch.ops.strict.empty_cache()

    def get_device_stats(self, device):
        return {}

    @staticmethod
    def parse_devices(devices):
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [DEVICE] * devices

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "strict"


FORKING = {"in_world", "solve_in", "start"}
"""Fixtures that fork."""


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if not FORKING.intersection(item.fixturenames)]


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    """Trainers on the device."""
    make = L.Trainer.__init__

    def made_on_device(self, **options):
        place = options.get("accelerator"), options.get("strategy", "auto")
        is_trial = sys._getframe(1).f_globals["__name__"] == module_trial.__name__  # on the CPU
        if place in {("cpu", "auto"), ("auto", "auto")} and not is_trial:
            # Not by name: Lightning knows a strategy of one device for its own accelerators only.
            options |= {
                "accelerator": StrictAccelerator(),
                "strategy": SingleDeviceStrategy(DEVICE),
            }
        make(self, **options)

    monkeypatch.setattr(L.Trainer, "__init__", made_on_device)
    monkeypatch.setattr(engine_runs, "Direct", strict_cuda.recorder(monkeypatch, DEVICE))
