"""Modules that nobody here wrote, federated: `python -m benchmarks.foreign_modules [NAME ...]`.

A name is a part of those in `benchmarks.foreign_cases`; without one, all run. Each package gets an
environment of its own, with flfast and the newest release. Each case is a process. The table says
which engine ran and why, whether both engines end at the same weights where one traces the module,
how many lines were written for flfast beside what `Trainer.fit` needs, and the seconds of all
algorithms. The exit code is 1 if a case differs from what is promised. It needs `uv` and a package
index, and takes about ten minutes on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.door import OF_OTHERS
from benchmarks.foreign_cases import CASES, NEEDED, ROOT

LONGEST_S = 600
"""Seconds of a case."""

COLUMNS = ("case", "version", "algorithms", "engine", "why", "equal", "lines", "s")


def environment(package: str | None, work: Path, python: str) -> Path:
    """The Python of a new environment with flfast and the package, or of one that is there."""
    place = work / (package or "flfast")
    if not place.exists():
        quiet = ("uv", "--quiet", "--no-config")
        needed = () if package is None else (package, *NEEDED.get(package, ()))
        subprocess.run((*quiet, "venv", "--python", python, str(place)), check=True)
        install = (*quiet, "pip", "install", "--python", str(place), "--editable", str(ROOT))
        subprocess.run((*install, *needed), check=True)
    return place / "bin" / "python"


def row_of(name: str, python: Path) -> dict[str, Any]:
    """The row of a case, which a process of this Python runs."""
    variables = {k: v for k, v in os.environ.items() if k not in OF_OTHERS}
    command = (str(python), str(ROOT / "benchmarks" / "foreign_cases.py"), name)
    try:
        done = subprocess.run(
            command, env=variables, text=True, capture_output=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"differs": [f"longer than {LONGEST_S} s"]}
    if done.returncode:
        return {"differs": ["\n".join(done.stderr.splitlines()[-8:])]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def line_of(name: str, row: dict[str, Any]) -> str:
    """A case's line of the table."""
    about = row.get("why") or row.get("refused", "")
    engine = row.get("engine") or ("refused" if row.get("refused") else "?")
    values = (
        *(name, row.get("version", ""), " ".join(row.get("algorithms", ()))),
        *(engine, about, row.get("equal", ""), row.get("lines", "")),
        f"{row.get('seconds', 0):.0f}",
    )
    return f"| {' | '.join(map(str, values))} |\n"


def main() -> None:
    """Run the cases and print the table, then what differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.foreign_modules", description=__doc__
    )
    parser.add_argument("names", nargs="*", default=[""], help="parts of names of cases")
    parser.add_argument("--environments", type=Path, help="a folder that keeps them")
    parser.add_argument("--python", default=sys.executable, help="that of the environments")
    args = parser.parse_args()
    chosen = {name: case for name, case in CASES.items() if any(n in name for n in args.names)}
    differs: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        work = args.environments or Path(folder)
        sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
        for name, case in chosen.items():
            try:
                row = row_of(name, environment(case.package, work, args.python))
            except subprocess.CalledProcessError as error:
                row = {"differs": [str(error)]}
            sys.stdout.write(line_of(name, row))
            sys.stdout.flush()
            differs += [f"differs: {name}: {what}\n" for what in row["differs"]]
    sys.stdout.writelines(differs)
    sys.exit(1 if differs or not chosen else 0)


if __name__ == "__main__":
    main()
