"""Plants bugs of a GPU's memory and transfers, and says which tests find them without a GPU.

    python -m benchmarks.device_mutations [NAME...]

Each bug of `planted_device_bugs.yaml` is planted in a process of its own, as `mutations.py` does.
The process runs the tests of recordings on the device of `tests/strict_device.py`. The table in
Markdown names those that fail. Without a bug, all of them must pass.

Exit code 1 if a bug is not found.
"""

import argparse
import os
import re
import subprocess
import sys

from benchmarks.checkouts import ROOT
from benchmarks.mutations import planted

MUTATIONS = planted("planted_device_bugs.yaml")

_PROGRAM = """
import sys
import pytest
from benchmarks.device_mutations import MUTATIONS
from benchmarks.mutations import install
name, *words = sys.argv[1:]
if name:
    install(MUTATIONS[name])
sys.exit(pytest.main(words))
"""
_WORDS = ["-p", "strict_device", "-W", "default", "-m", "", "-rf", "--tb=line"]


def found_by(name: str) -> list[str]:
    """The tests that fail with a planted bug; with an empty name, without one.

    Raises:
        RuntimeError: if they do not run.
    """
    tests = "tests/engines/on_strict_recordings.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, "-c", _PROGRAM, name, *_WORDS, tests]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 1}:
        raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
    failed = re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE)
    return sorted({*failed})


def main() -> None:
    """Print a line of the table for each bug."""
    parser = argparse.ArgumentParser(description="Which tests find planted bugs.")
    parser.add_argument("names", nargs="*", choices=[[], *MUTATIONS], metavar="NAME")
    names = parser.parse_args().names or [*MUTATIONS]
    if failed := found_by(""):
        raise RuntimeError(f"without a bug, tests fail: {failed}")
    num_found = 0
    print("| planted bug | tests that fail |\n| --- | --- |")  # noqa: T201 - its output
    for name in names:
        failed = found_by(name)
        num_found += bool(failed)
        line = ", ".join(f"`{test}`" for test in failed) or "none"
        print(f"| {MUTATIONS[name].what} | {line} |", flush=True)  # noqa: T201 - its output
    sys.exit(num_found < len(names))


if __name__ == "__main__":
    main()
