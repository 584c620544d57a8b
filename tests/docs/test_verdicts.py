"""The tables of published results are those of the rows and of the record that is kept."""

import pytest
from pages import ROOT

from docs import verdicts
from flfast.zoo.commands.conformance.row_files import LEVELS, read_rows


@pytest.fixture(scope="module")
def rows_of():
    """The rows by level, read once."""
    return {level: read_rows(level) for level in LEVELS}


@pytest.fixture
def rows(rows_of):
    return [row for level in LEVELS for row in rows_of[level]]


@pytest.mark.parametrize("name", ["conformance", "reproductions"])
def test_tables_are_up_to_date(name, rows_of, monkeypatch):
    monkeypatch.setattr(verdicts, "read_rows", rows_of.__getitem__)
    text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert verdicts.page(text, verdicts.kept()) == text


def test_what_holds_is_known_to_hold(rows):
    record = verdicts.kept()
    wrong = [row.name for row in rows if record.get(row.name, {}).get("holds") == (not row.holds)]
    assert not wrong


def test_every_claim_of_a_row_that_ran_has_its_line(rows):
    record = verdicts.kept()
    for row in rows:
        if row.name in record:
            assert len(record[row.name]["claims"]) == len(row.claims), row.name


def test_a_row_that_was_not_run_has_no_numbers(rows):
    row = rows[0]
    assert "| not run |" in verdicts.rows_table([row], {})
    assert verdicts.claims_table([row], {}).count("\n") == 1
