"""What the package says of itself: one version, and the Python versions that it is tested on."""

import re
import sys
from importlib.metadata import metadata
from itertools import product
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import flfast
from flfast import train

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def read_yaml(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_there_is_one_version():
    """It stands in the package, so that a checkout that is not installed knows it, too."""
    assert metadata("flfast")["Version"] == flfast.__version__
    assert read_yaml("CITATION.cff")["version"] == flfast.__version__


def test_the_command_says_its_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["flfast", "--version"])
    train.main()
    assert capsys.readouterr().out == f"flfast {flfast.__version__}\n"


def test_constraints_have_one_version_of_each_library_for_each_python():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    constraints = [Requirement(line) for line in lines]
    assert not any(need.url for need in constraints)
    extras = sorted({*metadata("flfast").get_all("Provides-Extra")})
    minors = re.findall(r"Python :: (3\.\d+)", PROJECT)
    for minor, extra in product(minors, extras):
        place = {"python_version": minor, "python_full_version": f"{minor}.0", "extra": extra}
        place |= {"sys_platform": "linux", "platform_machine": "x86_64"}
        for need in map(Requirement, metadata("flfast").get_all("Requires-Dist")):
            if need.name == "flfast" or (need.marker and not need.marker.evaluate(place)):
                continue
            name = canonicalize_name(need.name)
            chosen = [c for c in constraints if canonicalize_name(c.name) == name]
            (only,) = [c for c in chosen if not c.marker or c.marker.evaluate(place)]
            (version,) = only.specifier
            assert need.specifier.contains(version.version), (minor, str(need))


def test_the_oldest_and_the_newest_python_are_tested():
    named = re.findall(r"Python :: (3\.\d+)", PROJECT)
    minors = [int(name.removeprefix("3.")) for name in named]
    assert minors == list(range(minors[0], minors[-1] + 1))
    wanted = metadata("flfast")["Requires-Python"]
    assert set(wanted.split(",")) == {f">=3.{minors[0]}", f"<3.{minors[-1] + 1}"}
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"]
    assert jobs["checks"]["strategy"]["matrix"]["python"] == [named[0], named[-1]]
    assert jobs["between"]["strategy"]["matrix"]["python"] == named[1:-1]


def test_the_conda_recipe_needs_what_the_package_needs():
    recipe = read_yaml(".ci/recipe.yaml")
    assert recipe["context"]["version"] == flfast.__version__
    known = metadata("flfast")
    needs = [need for need in known.get_all("Requires-Dist") if "extra ==" not in need]
    ours = {as_set(need) for need in (*needs, f"python{known['Requires-Python']}")}
    other_names = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    theirs = {as_set(need) for need in recipe["requirements"]["run"]}
    assert {(other_names.get(name, name), bounds) for name, bounds in theirs} == ours


def as_set(need):
    """Name and bounds of a requirement; the bounds may be in any order."""
    return re.match(r"[\w-]+", need)[0], frozenset(re.findall(r"[<>=]+[\w.]+", need))
