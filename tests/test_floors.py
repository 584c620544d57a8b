"""Imports go down, from every floor only to the floors below it; torch and Hydra stay in place."""

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "flfast"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOORS = (
    {"options", "randomness", "plan", "injection", "machine", "state"},
    {"models", "datamodules"},
    {"algorithms", "aggregations", "attacks", "faults"},
    {"lit"},
    {"federation"},
    {"callbacks", "loggers"},
    {"inspection"},
    {"checkpoints"},
    {"config"},
    {"building", "threats"},
    {"joining", "resuming", "sizing"},
    {"experiment"},
    {"launch"},
    {"train"},
    {"doctor"},
)
# What the tables of a run look like, callbacks read beside their own floor.
SHARED = {"flfast.loggers.columns", "flfast.loggers.table"}
HYDRA = {
    "flfast.train",
    "flfast.experiment",
    "flfast.building",
    "flfast.threats",
    "flfast.joining",
    "flfast.resuming",
    "flfast.sizing",
    "flfast.launch",
    "flfast.config.*",
    "flfast.callbacks.comparison",
    "flfast.callbacks.sweep",
}
TORCH_FREE = {
    "flfast.train",
    "flfast.config.*",
    "flfast.options",
    "flfast.plan",
    "flfast.checkpoints.folders",
    "flfast.checkpoints.policy",
    "flfast.checkpoints.science",
    "flfast.checkpoints.signals",
    "flfast.injection",
    "flfast.machine",
    "flfast.loggers.columns",
    "flfast.loggers.table",
    "flfast.callbacks.comparison",
    "flfast.callbacks.comparison_figure",
    "flfast.callbacks.figures",
    "flfast.callbacks.history",
    "flfast.callbacks.screen",
    "flfast.callbacks.sweep",
    "flfast.datamodules.partitions.*",
}


def name(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def imports(path):
    """Modules that a file imports: anywhere in it, for type checkers only included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            whole = node.module == "flfast"
            yield from (f"flfast.{a.name}" for a in node.names) if whole else [node.module]


def part(module):
    return module.split(".")[1]


def floor(module):
    found = [number for number, parts in enumerate(FLOORS) if part(module) in parts]
    assert found, f"{module} is on no floor: add it to FLOORS"
    return found[0]


def matches(module, patterns):
    return any(fnmatch(module, pattern) for pattern in patterns)


@pytest.mark.parametrize(
    "path", [f for f in FILES if f.parent != PACKAGE or f.stem != "__init__"], ids=name
)
def test_imports_go_down(path):
    own = name(path)
    ours = {module for module in imports(path) if module.startswith("flfast.")}
    for module in ours - (SHARED if part(own) == "callbacks" else set()):
        if part(module) != part(own):
            assert floor(module) < floor(own), f"{own} imports {module}"


def test_the_package_itself_imports_nothing_but_its_version():
    assert list(imports(PACKAGE / "__init__.py")) == ["importlib.metadata"]


def test_hydra_stops_at_the_door():
    users = {
        name(path)
        for path in FILES
        if any(module.split(".")[0] in {"hydra", "omegaconf"} for module in imports(path))
    }
    assert {module for module in users if not matches(module, HYDRA)} == set()


def test_what_answers_before_torch_imports_without_it():
    modules = [name(path) for path in FILES if matches(name(path), TORCH_FREE)]
    assert len(modules) >= len(TORCH_FREE)
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr or "one of them imports torch"
