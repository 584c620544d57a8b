"""Tests of the engines again, on a device that refuses what a GPU refuses; see `strict_device.py`.

They run in a process of their own, which autograd's thread for the device forbids to fork.
"""

import os
import shutil
import subprocess
import sys

import pytest

from flfast.state.native.compiler import COMPILERS

ALGORITHMS = ["tests/algorithms/test_contract.py", "-k", "engines_agree and (linear or mlp)"]
ROUNDS = [
    *("tests/engines/on_strict_device.py", "tests/engines/copies_on_strict_device.py"),
    "tests/engines/on_strict_recordings.py",
    *("tests/engines/fused/graph/test_cuda_graphs.py", "tests/lit/test_trainers.py"),
    "tests/lit/test_user_module.py",
    *(f"tests/engines/fused/test_{name}.py" for name in ("fused", "stacks", "features")),
    *(f"tests/engines/test_{name}.py" for name in ("eager", "stages", "delivery")),
    "tests/engines/evaluation",
    "tests/checkpoints/test_resume.py",
    *("-k", "not (held_tensors or test_resume) or never_stopped"),
    *("-m", "not slow"),
]
"""A model of `held_tensors` is on the CPU; all of its forms would fail on a GPU, too."""


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute each on an idle machine
@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C++ compiler")
@pytest.mark.parametrize("words", [ALGORITHMS, ROUNDS], ids=["algorithms", "rounds"])
def test_nothing_that_the_engines_do_mixes_devices(root, words):
    # Without warnings as errors: those of old libraries are for no test here to notice.
    options = ("-p", "strict_device", "-W", "default", "-m", "")
    command = [sys.executable, "-m", "pytest", *options, *words]
    env = {**os.environ, "PYTHONPATH": str(root / "tests")}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
