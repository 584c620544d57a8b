"""`python -m flfast.doctor [FOLDER]` checks what works on this machine, and how to fix the rest.

Each line appears as soon as it is known. A machine that has not compiled our C++ yet does so,
which takes longer than all other checks together.

Exit code 0 if a run with the defaults works in FOLDER (default: `outputs`), else 1.
"""

import argparse
import sys
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
    from flfast.commands.doctor.examination import examine  # torch: takes seconds

    broken = examine(folder, train.main)
    verdict = f"will not work: {', '.join(broken)}" if broken else "will work"
    print(f"A run with the defaults {verdict}.")  # noqa: T201
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
