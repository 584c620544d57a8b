"""Jobs that run other commands: the doctor, the tests that need a GPU, several ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.checkouts import HERE, ROOT
from benchmarks.gpu.job import Found, Setting
from benchmarks.gpu.runs import Answer
from benchmarks.machine import gpu_names
from benchmarks.workloads import find

TESTS = (
    "tests/engines/fused/test_gpu.py",
    "tests/state/test_precision.py",
    "tests/engines/fused/graph/test_cuda_graphs.py",
)
"""Files with tests that need a GPU."""
LOG = "pytest.txt"


def doctor(_: Setting, found: Found) -> None:
    """`python -m flfast.doctor`: what works here.

    Raises:
        RuntimeError: if a run with the defaults would not work.
    """
    with TemporaryDirectory(prefix="flfast-gpu-doctor-") as folder:
        said = _command("-m", "flfast.doctor", folder, found=found)
    found["fails"] = [line.strip() for line in said.splitlines() if "fails" in line]
    if found["exit_code"]:
        raise RuntimeError(f"flfast.doctor ended with {found['exit_code']}")


def tests(setting: Setting, found: Found) -> None:
    """Both engines give the same numbers on the device, recorded or not.

    Raises:
        RuntimeError: if a test fails, or none ran.
    """
    options = ["-rfE", "-W", "default", "-p", "no:cacheprovider", "--maxfail=15"]
    options += ["-n", "6" if setting.cuda else "0", "-k", "gpu or cuda"]
    said = _command("-m", "pytest", *options, *TESTS, found=found)
    (setting.folder / LOG).write_text(said)
    lines = said.splitlines()
    counted = (line for line in reversed(lines) if " passed" in line or " failed" in line)
    found["tests"] = next(counted, "none").strip(" =")
    found["failed"] = [line[:160] for line in lines if line.startswith(("FAILED", "ERROR"))]
    if found["exit_code"] or " passed" not in found["tests"]:
        raise RuntimeError(f"pytest ended with {found['exit_code']}: {found['tests']}")


def ranks(*words: str, by_torchrun: bool = False) -> Answer:
    """A run on all GPUs, or on two processes of a CPU, in processes of its own."""

    def run(setting: Setting, found: Found) -> None:
        num = len(gpu_names()) if setting.cuda else 2
        work = find("W3", pfllib=Path("nowhere"), quick=True)
        launcher = ["-m"]
        if by_torchrun:
            launcher += ["torch.distributed.run", f"--nproc-per-node={num}"]
            launcher += ["--master-addr=127.0.0.1", "-m"]
        with TemporaryDirectory(prefix="flfast-gpu-ranks-") as folder:
            said = _command(
                *(*launcher, "flfast.train", "--config-dir", str(HERE.conf)),
                *work.flfast_overrides(device=setting.device, rounds=2),
                *(*words, f"trainer.devices={num}", f"hydra.run.dir={Path(folder) / 'run'}"),
                found=found,
            )
        found["ranks"] = num
        if found["exit_code"]:
            raise RuntimeError(said.strip().splitlines()[-1])

    return run


def _command(*words: str, found: Found) -> str:
    """What Python writes with these words; `found` gets the exit code."""
    command = [sys.executable, *words]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=ROOT, check=False, **options)  # type: ignore[call-overload]
    sys.stdout.write(done.stdout)
    found["exit_code"] = done.returncode
    return str(done.stdout)
