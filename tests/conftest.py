"""Prepares every process of a test run. The fixtures, which import torch, are elsewhere."""

import gc
import os
import sys
import tempfile
from pathlib import Path

if sys.dont_write_bytecode:
    # Containers often set this. Each process would then compile torch and all else that it
    # imports, for ten seconds.
    folder = Path(tempfile.gettempdir()) / f"flfast-bytecode-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid == os.getuid():  # anybody may have made it, and we run what is in it
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder)
        # Of processes to come.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder)

FIXTURES = ("shared_fixtures", "algorithm_fixtures", "source_fixtures")

# No process that imports the first two can be forked; `engines/test_strict_device.py` names them.
# The others change libraries, which pytest would do again where it looks for examples in them.
collect_ignore = [
    "strict_device.py",
    "engines/on_strict_device.py",
    "quick_hydra.py",
    *(f"{name}.py" for name in FIXTURES),
]


def pytest_configure(config):
    """Load the fixtures, but not where xdist only hands out tests: its workers wait for it."""
    only_hands_out = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not only_hands_out:
        import flfast  # noqa: F401 - before Lightning, which then loads few of torchmetrics

        gc.disable()  # until all tests are collected: it would walk through them again and again
        for name in FIXTURES:
            config.pluginmanager.import_plugin(name)
