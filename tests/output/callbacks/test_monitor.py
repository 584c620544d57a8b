import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from tables import rows


@pytest.mark.slow
def test_every_round_says_what_it_asked_of_the_machine(flfast_run):
    folder = flfast_run("experiment=quick", "rounds=2", "callbacks=files")
    for row in rows(folder)[1:]:
        assert 10 < float(row["monitor/rank0_cpu_percent"]) < 3200
        assert 1e7 < float(row["monitor/rank0_memory_bytes"]) < 1e12
        assert 0 <= float(row["monitor/machine_cpu_percent"]) <= 100
        assert 0 < float(row["monitor/machine_memory_percent"]) <= 100
        assert 0 < float(row["monitor/disk_free_bytes"]) < 1e16
        assert ("monitor/gpu_percent" in row) == torch.cuda.is_available()


NVML = """
class NVMLError(Exception):
    pass
class NVMLError_DriverNotLoaded(NVMLError):
    pass
fails = ""
asked = []
def _maybe(name):
    asked.append(name)
    if name == fails:
        raise NVMLError(f"{name} is not supported")
def nvmlInit():
    if fails == "driver":
        raise NVMLError_DriverNotLoaded("no driver")
    _maybe("nvmlInit")
def nvmlDeviceGetHandleByIndex(index):
    _maybe("nvmlDeviceGetHandleByIndex")
    return index
def nvmlDeviceGetUtilizationRates(handle):
    _maybe("nvmlDeviceGetUtilizationRates")
    return None if fails == "rates" else type("Rates", (), {"gpu": 7})
"""
"""A driver's library that fails where it is told to, as do virtual GPUs, MIG and Jetson."""

TWO_ROUNDS = """
import json, logging, sys
from pathlib import Path
from types import SimpleNamespace

import torch
from flfast.output.callbacks.monitor import Monitor

torch.cuda._initialized = True  # as after the first tensor on a GPU
torch.cuda.current_device = torch._utils._get_current_device_index = lambda: 0
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger().addHandler(handler)
found = {}
for fails in json.loads(sys.argv[1]):
    nvml = sys.modules.get("pynvml")
    if nvml:
        nvml.fails, nvml.asked = fails, []
    monitor, run, table = Monitor(), SimpleNamespace(run_dir=Path()), []
    lines.clear()
    for _ in range(2):
        monitor.on_round_start(run, None, None)
        table.append({})
        monitor.on_round_trained(run, table[-1])
    found[fails] = {"rows": table, "lines": list(lines), "asked": getattr(nvml, "asked", [])}
print(json.dumps(found))
"""


def two_rounds(folder, nvml, *ways):
    """Rows and log lines of two rounds on a process that has a GPU by its own account."""
    (folder / "pynvml.py").write_text(textwrap.dedent(nvml))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-c", TWO_ROUNDS, json.dumps(ways)]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        words, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def check(found, column="monitor/gpu_percent"):
    """The column stays empty, one line says why, and the others are there."""
    assert len([line for line in found["lines"] if column in line]) == 1
    for row in found["rows"]:
        assert column not in row
        assert row["monitor/rank0_memory_bytes"] > 1e7
        assert row["monitor/disk_free_bytes"] > 0


def test_a_driver_that_cannot_tell_costs_a_column(tmp_path):
    functions = ("nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUtilizationRates")
    found = two_rounds(tmp_path, NVML, "", "driver", "rates", *functions)
    working = found.pop("")
    assert [row["monitor/gpu_percent"] for row in working["rows"]] == [7, 7]
    assert working["asked"].count("nvmlDeviceGetUtilizationRates") == 2  # once per round
    for way, result in found.items():
        check(result)
        assert result["asked"].count("nvmlInit") <= 1, way  # not again


@pytest.mark.slow
@pytest.mark.parametrize(
    "nvml",
    [
        "raise ModuleNotFoundError('no module named pynvml')",
        "raise ImportError('libnvidia-ml.so.1: cannot open shared object file')",
        "other = 1  # another package of this name",
    ],
)
def test_a_package_that_cannot_be_imported_costs_a_column(tmp_path, nvml):
    check(two_rounds(tmp_path, nvml, "")[""])
