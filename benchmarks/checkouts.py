"""Copies of the project whose flfast is measured: this one, or another commit. Torch-free.

Another checkout's flfast runs with its own `benchmarks/conf`, and with the models and data that
these files name. What that checkout does not have yet, such as the data of a newer workload, is
taken from this one. Nothing else of `benchmarks` is seen by it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
_TARGET = re.compile(r"^_target_: benchmarks\.(\w+)\.", re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """Where a process runs.

    Attributes:
        name: in tables: short hash, with a + where files differ from the commit; empty for the
            one that this command belongs to.
        root: folder of `flfast/`.
        place: working folder of its processes, with a package `benchmarks` and its `conf`.
    """

    name: str
    root: Path
    place: Path

    @property
    def conf(self) -> Path:
        """Options that benchmarks add to `conf/`."""
        return self.place / "benchmarks" / "conf"


HERE = Checkout("", ROOT, ROOT)


@contextmanager
def opened(against: str | None, folders: Sequence[Path]) -> Iterator[tuple[Checkout, ...]]:
    """The two checkouts to compare, earlier first; only this one, if there is nothing to compare.

    Args:
        against: a commit to compare this checkout with; checked out in a temporary folder.
        folders: or two checkouts to compare.

    Raises:
        ValueError: if there is no such commit, or a folder is no checkout.
    """
    with ExitStack() as stack:
        if against is not None:
            worktree = stack.enter_context(_worktree(against))
            yield stack.enter_context(_placed(_short_hash(worktree), worktree)), HERE
        elif folders:
            for folder in folders:
                if not (folder / "flfast" / "train.py").is_file():
                    raise ValueError(
                        f"--checkouts {folder}: no checkout, it has no flfast/train.py"
                    )
            names = [commit(folder) for folder in folders]
            if "" in names or len(set(names)) < len(names):  # such as two clones at one commit
                names = ["first", "second"]
            pairs = zip(names, folders, strict=True)
            yield tuple(stack.enter_context(_placed(name, root.resolve())) for name, root in pairs)
        else:
            yield (HERE,)


def commit(root: Path) -> str:
    """Short hash of a checkout, with a + where files differ from it; empty outside of git."""
    try:
        changed = "+" if _git(root, "status", "--porcelain", "-uno") else ""
        return _short_hash(root) + changed
    except (OSError, subprocess.CalledProcessError):
        return ""


@contextmanager
def _worktree(name: str) -> Iterator[Path]:
    try:
        found = _git(ROOT, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except subprocess.CalledProcessError:
        raise ValueError(f"--against {name}: no such commit in this repository") from None
    with TemporaryDirectory(prefix="flfast-checkout-") as folder:
        path = Path(folder) / "checkout"
        _git(ROOT, "worktree", "add", "--detach", str(path), found)
        try:
            yield path
        finally:
            _git(ROOT, "worktree", "remove", "--force", str(path))


@contextmanager
def _placed(name: str, root: Path) -> Iterator[Checkout]:
    with TemporaryDirectory(prefix="flfast-place-") as folder:
        _assemble(root / "benchmarks", Path(folder) / "benchmarks")
        yield Checkout(name, root, Path(folder))


def _assemble(own: Path, package: Path) -> None:
    """Lay a package `benchmarks`: options, and the modules that these name."""
    package.mkdir()
    (package / "__init__.py").touch()
    present = ROOT / "benchmarks"
    options = {path.relative_to(present) for path in present.glob("conf/*/*.yaml")}
    options |= {path.relative_to(own) for path in own.glob("conf/*/*.yaml")}
    for option in sorted(options):
        source = own if (own / option).is_file() else present
        (package / option).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / option, package / option)
        for module in _TARGET.findall((source / option).read_text(encoding="utf-8")):
            shutil.copy(source / f"{module}.py", package)


def _short_hash(root: Path) -> str:
    return _git(root, "rev-parse", "--short", "HEAD")


def _git(root: Path, *arguments: str) -> str:
    command = ("git", "-C", str(root), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
