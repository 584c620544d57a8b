"""The page From Lightning: its table is up to date. Its programs run in test_python.py."""

import re

import pytest

from docs.families import families
from docs.lightning import PAGE, page, row

TEXT = PAGE.read_text(encoding="utf-8")
_LINES = re.findall(
    r"^\| ((?:yes|no).*) \|$", TEXT.partition("<!-- table modules -->")[2], re.MULTILINE
)
CELLS = [re.split(r" +\| ", line) for line in _LINES]


@pytest.mark.slow
def test_the_table_is_up_to_date():
    assert page() == TEXT, "run python -m docs.lightning"


def test_every_algorithm_has_one_row():
    listed = [name for cells in CELLS for name in cells[-1].split(", ")]
    assert sorted(listed) == sorted(f"`{name}`" for name in families())


@pytest.mark.parametrize("name", ["fedavg", "moon", "scaffold", "ifca", "fedrod"])
def test_rows_are_what_the_algorithms_say(name):
    assert (*row(name), True) in {
        (*cells[:3], f"`{name}`" in cells[-1].split(", ")) for cells in CELLS
    }
