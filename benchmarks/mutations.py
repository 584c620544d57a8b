"""Plants bugs, one at a time, and says which row of the conformance program catches it.

    python -m benchmarks.mutations [NAME...]

Each mutation of `planted_bugs.yaml` replaces a text of one module while it is imported; no file
is changed. A process of its own runs the row that has to miss, or all rows of `fast` that take at
most `MOST_MINUTES`. The table in Markdown names those that miss.

Exit code 1 if a bug is not caught.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import yaml

from flfast.zoo.commands.conformance.conformance_files import RECORD
from flfast.zoo.commands.conformance.row_files import read_rows

MOST_MINUTES = 0.5


class Mutation(NamedTuple):
    """A bug: in `module`, the text `old` becomes `new`.

    Attributes:
        what: the bug in words.
        module: where it is.
        old: text that is there once.
        new: what replaces it.
        row: that has to miss, and is run alone; empty: any of all short rows.
    """

    what: str
    module: str
    old: str
    new: str
    row: str = ""


def planted(file: str) -> dict[str, Mutation]:
    """The bugs of a file beside this one, by name."""
    bugs = yaml.safe_load(Path(__file__).with_name(file).read_text("utf-8"))
    return {name: Mutation(**bug) for name, bug in bugs.items()}


MUTATIONS = planted("planted_bugs.yaml")


class _Mutated(SourceFileLoader):
    """Loads a module with a mutation, past the cache of compiled modules."""

    def __init__(self, path: str, mutation: Mutation) -> None:
        super().__init__(mutation.module, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        """The code of the mutated module."""
        source, old = self.get_source(fullname), self._mutation.old
        if source is None or source.count(old) != 1:
            raise ValueError(f"{fullname} does not have once: {old}")
        return compile(source.replace(old, self._mutation.new), self.path, "exec")


class _Finder:
    """Finds the module of a mutation; `install` puts it before Python's own finders."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != self._mutation.module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Mutated(spec.origin, self._mutation)
        return spec


def install(mutation: Mutation) -> None:
    """Plant a bug in this process; its module must not be imported yet."""
    assert mutation.module not in sys.modules
    sys.meta_path.insert(0, _Finder(mutation))


_PROGRAM = """
import sys
from benchmarks.mutations import MUTATIONS, install
install(MUTATIONS[sys.argv.pop(1)])
from flfast.conformance import main
main()
"""


def caught_by(name: str, rows: list[str], folder: Path) -> list[str]:
    """The rows that miss with a planted bug."""
    words = [sys.executable, "-c", _PROGRAM, name, "fast", *rows, f"folder={folder}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if not (folder / RECORD).exists():
        raise RuntimeError(f"{name}: {done.stderr}")
    found = json.loads((folder / RECORD).read_text(encoding="utf-8"))["rows"]
    return [row["row"] for row in found if row["holds"] is False]


def main() -> None:
    """Print a line of the table for each bug."""
    parser = argparse.ArgumentParser(description="Which rows catch planted bugs.")
    parser.add_argument("names", nargs="*", choices=[[], *MUTATIONS], metavar="NAME")
    names = parser.parse_args().names or [*MUTATIONS]
    rows = [row.name for row in read_rows("fast") if row.minutes <= MOST_MINUTES]
    caught = 0
    print("| planted bug | rows that miss |\n| --- | --- |")  # noqa: T201 - its output
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            row = MUTATIONS[name].row
            found = caught_by(name, [row] if row else rows, Path(folder))
        caught += bool(found)
        line = ", ".join(f"`{row}`" for row in found) or "none"
        print(f"| {MUTATIONS[name].what} | {line} |", flush=True)  # noqa: T201 - its output
    sys.exit(caught < len(names))


if __name__ == "__main__":
    main()
