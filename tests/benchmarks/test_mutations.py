"""Planted bugs change one place of one module, which is still Python."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from pages import ROOT

from benchmarks import device_mutations
from benchmarks.mutations import MUTATIONS, _Mutated
from flfast.zoo.commands.conformance.row_files import read_rows

ALL = {**MUTATIONS, **device_mutations.MUTATIONS}


@pytest.mark.parametrize("name", ALL)
def test_a_mutation_changes_one_place(name):
    mutation = ALL[name]
    path = importlib.util.find_spec(mutation.module).origin
    source = Path(path).read_text()
    assert source.count(mutation.old) == 1
    assert mutation.new != mutation.old
    code = _Mutated(path, mutation).get_code(mutation.module)
    assert code != compile(source, path, "exec")


def test_a_text_that_is_not_there_is_an_error():
    mutation = MUTATIONS["fedrep_head"]._replace(old="no such text")
    path = importlib.util.find_spec(mutation.module).origin
    with pytest.raises(ValueError, match="does not have once: no such text"):
        _Mutated(path, mutation).get_code(mutation.module)


def test_a_row_that_a_bug_names_has_two_bugs():
    named = Counter(bug.row for bug in MUTATIONS.values() if bug.row)
    read_rows("fast", list(named))  # refuses unknown ones
    assert min(named.values()) >= 2


def test_the_page_says_of_every_bug_which_row_misses_and_no_closed_form_catches_nothing():
    page = (ROOT / "docs" / "conformance.md").read_text("utf-8")
    _, _, table = page.partition("| planted bug | rows that miss |")
    lines = dict(
        line.strip("| ").split(" | ") for line in table.splitlines()[2 : len(MUTATIONS) + 2]
    )
    assert list(lines) == [bug.what for bug in MUTATIONS.values()]
    assert all(f"`{bug.row}`" in lines[bug.what] for bug in MUTATIONS.values() if bug.row)
    closed = [row.name for row in read_rows("fast") if row.name.startswith("closed_form")]
    assert [name for name in closed if f"`{name}`" not in " ".join(lines.values())] == []
