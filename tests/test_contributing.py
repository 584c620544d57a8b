"""The recipes of CONTRIBUTING.md are complete, pass the linter, and run outside of the repo."""

import ast
import re
import statistics
import subprocess
import sys
from pathlib import Path, PurePosixPath

import limits
import pytest
import yaml
from tables import rows

from flfast import train

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# A block names its file after the language: ```python flfast/models/mlp.py
BLOCKS = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))
PYTHON = sorted(path for path in BLOCKS if path.endswith(".py"))
CHOICES = [f"{Path(path).parent.name}={Path(path).stem}" for path in BLOCKS if "conf/" in path]


def module(path):
    return ".".join(PurePosixPath(path).with_suffix("").parts)


def test_a_recipe_is_one_python_file_and_one_yaml():
    groups = [choice.partition("=")[0] for choice in CHOICES]
    assert sorted(groups) == ["algorithm", "data", "model", "partition"]
    names = sorted(Path(path).stem for path in PYTHON)
    assert names == sorted(choice.partition("=")[2] for choice in CHOICES)
    assert len(BLOCKS) == 8


@pytest.mark.parametrize("path", BLOCKS)
def test_a_recipe_is_shorter_than_eighty_lines(path):
    assert BLOCKS[path].count("\n") < 80


def test_a_yaml_names_the_function_of_its_recipe():
    targets = {yaml.safe_load(BLOCKS[p])["_target_"] for p in BLOCKS if p.endswith(".yaml")}
    assert targets == {f"{module(path)}.{Path(path).stem}" for path in PYTHON}


@pytest.mark.parametrize("path", PYTHON)
@pytest.mark.parametrize("command", [("check", "--no-cache"), ("format", "--check")], ids=" ".join)
def test_a_recipe_passes_its_own_checklist(path, command):
    ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"]
    found = subprocess.run(
        ruff, input=BLOCKS[path], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture(scope="module")
def package():
    """Text and syntax tree of every file of the package."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "flfast").rglob("*.py")}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def test_files_are_as_short_as_the_checklist_says(package):
    lengths = {path: text.count("\n") for path, (text, _) in package.items()}
    assert [path for path, length in lengths.items() if length > limits.FILE] == []
    assert statistics.median(lengths.values()) <= limits.MEDIAN_FILE


def test_functions_are_as_short_as_the_checklist_says(package):
    lengths = {
        f"{path}:{node.lineno} {node.name}": code_lines(node)
        for path, (_, tree) in package.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert [name for name, length in lengths.items() if length > limits.FUNCTION] == []
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= limits.MOST_FUNCTIONS


def code_lines(function):
    """Lines of a function without its docstring."""
    first, docstring = function.body[0], ast.get_docstring(function)
    told = 0 if docstring is None else first.end_lineno - first.lineno + 1
    return function.end_lineno - function.lineno + 1 - told


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A user's folder with the layout of the page."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for path, text in BLOCKS.items():
        place = folder / (path if path.startswith("conf/") else f"mine/{Path(path).name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        moved = re.sub(r"(?m)^_target_: flfast\.[\w.]+(\.\w+\.\w+)", r"_target_: mine\1", text)
        place.write_text(moved, encoding="utf-8")
    return folder


@pytest.fixture
def run(elsewhere, start):
    """Run the command in the user's folder; returns (exit code, folder with its output)."""

    def run(*overrides):
        arguments = ("--config-dir", "conf", *CHOICES, "rounds=2", "callbacks=none", *overrides)
        command = start(train.main, *arguments, "hydra.run.dir=run", folder=elsewhere)
        return command.end()[0], command.folder

    return run


@pytest.mark.slow
def test_the_recipes_run_together_from_another_package(run):
    code, folder = run()
    assert code == 0, (folder / "stderr").read_text()
    table = rows(folder / "run")
    assert [row["round"] for row in table] == ["0", "1", "2"]
    assert float(table[-1]["global/accuracy"]) > 0.75
    named = "slow_server · two_moons · zipf · residual_mlp · 10 clients"
    assert named in (folder / "stdout").read_text()


def test_options_of_another_package_are_checked_like_ours(run):
    code, folder = run("algorithm.server_lr=-1", "+model.widthh=3")
    assert code == 2
    errors = (folder / "stderr").read_text()
    assert "algorithm.server_lr=-1: must be greater than 0" in errors
    assert "unknown key model.widthh=3; did you mean width?" in errors
