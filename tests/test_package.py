"""What the package says of itself."""

import re
from pathlib import Path

import yaml

import flfast

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def read_yaml(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_there_is_one_version():
    (expected,) = re.findall(r'^version = "(.+)"$', PROJECT, re.MULTILINE)
    assert flfast.__version__ == expected
    assert read_yaml("CITATION.cff")["version"] == expected
