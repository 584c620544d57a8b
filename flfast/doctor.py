"""`python -m flfast.doctor [FOLDER]` checks what works on this machine, and how to fix the rest.

Each line appears as soon as it is known. A machine that has not compiled our C++ yet does so
meanwhile, which takes longer than all other checks together.

Exit code 0 if a run with the defaults works in FOLDER (default: `outputs`), else 1.
"""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from flfast import train
from flfast.state.output_streams import surviving_output


@surviving_output()
def main() -> None:
    """Run all checks, print the findings, and exit."""
    parser = argparse.ArgumentParser(
        description="Check what works on this machine, and how to fix the rest."
    )
    parser.add_argument(
        "folder", nargs="?", default="outputs", type=Path, help="folder for runs (outputs)"
    )
    folder = parser.parse_args().folder
    print("The checks take up to a minute where C++ must be compiled.", flush=True)  # noqa: T201
    with _compiling():
        from flfast.commands.doctor.examination import examine  # torch: takes seconds

        broken = examine(folder, train.main)
    verdict = f"will not work: {', '.join(broken)}" if broken else "will work"
    print(f"A run with the defaults {verdict}.")  # noqa: T201
    sys.exit(bool(broken))


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Compile our C++ in another process, from before torch is imported here.

    The check of the kernels waits for it, and has its error.
    """
    code = "from flfast.state.native.compiler import build; build()"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
