"""An algorithm is one short Python file and one YAML; no other file mentions it."""

import ast
import statistics
from functools import cache
from pathlib import Path

import limits
import pytest
import yaml

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml"))
CORE, ZOO = ROOT / "flfast" / "algorithms", ROOT / "flfast" / "zoo" / "algorithms"
# They implement the baselines `mode=centralized` and `mode=local_only`.
KNOWN = {
    ("fedavg", "setup/build_algorithm.py"),
    ("fedavg", "config/combinations.py"),  # an option without needs
    ("local", "setup/build_algorithm.py"),
}
AMBIGUOUS = {"local"}  # also a view of evaluation and a policy of BatchNorm


@pytest.mark.parametrize("name", NAMES)
def test_a_yaml_targets_the_function_of_the_same_name(name):
    config = yaml.safe_load((ROOT / "conf" / "algorithm" / f"{name}.yaml").read_text("utf-8"))
    assert config["_target_"] == f"{module_of(file_of(name))}.{name}"


def file_of(name):
    """The Python file of an algorithm, in the core or in the zoo."""
    (path,) = (path for path in (CORE / f"{name}.py", ZOO / f"{name}.py") if path.exists())
    return path


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def code_lines(name):
    """Lines without the docstring of paper and equations."""
    text = file_of(name).read_text(encoding="utf-8")
    return len(text.splitlines()) - ast.parse(text).body[0].end_lineno


def test_an_algorithm_is_one_page_and_half_of_them_are_short():
    assert max(map(code_lines, NAMES)) <= limits.ALGORITHM
    assert statistics.median(map(code_lines, NAMES)) <= limits.MEDIAN_ALGORITHM


@cache
def said_in_package():
    """What each file of the package mentions."""
    paths = (ROOT / "flfast").rglob("*.py")
    return {path: set(mentions(ast.parse(path.read_text(encoding="utf-8")))) for path in paths}


def users_of(path):
    """Files of the package that import a module."""
    module = module_of(path)
    return [user for user, said in said_in_package().items() if module in said]


@pytest.mark.parametrize("folder", [CORE, ZOO], ids=["core", "zoo"])
def test_a_helper_of_the_kit_has_several_users_and_all_others_are_in_the_algorithm_itself(folder):
    """One with a single user is part of that algorithm; `setup` uses helpers for all of them."""
    assert {path.stem for path in folder.glob("*.py")} <= {*NAMES, "__init__"}
    for path in (folder / "kit").glob("[!_]*.py"):
        users = users_of(path)
        algorithms = {CORE, ZOO, CORE / "kit", ZOO / "kit"}
        assert len(users) > 1 or users[0].parent not in algorithms, path.stem


def mentions(tree):
    """Modules that a syntax tree imports, and its strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield f"{node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_other_python_file_mentions_an_algorithm():
    found = set()
    for name in NAMES:
        own = file_of(name)
        for path, said in said_in_package().items():
            is_named = name in said and name not in AMBIGUOUS
            if path != own and (is_named or module_of(own) in said):
                found.add((name, path.relative_to(ROOT / "flfast").as_posix()))
    assert found <= KNOWN
